// History: what changed, the latest first.

import { element, find, replace, table } from "./dom.js";
import { moment } from "./format.js";

const KINDS = { decision: "decisions", limit: "limits met", restart: "restarts", spec: "the specification", version: "versions", condition: "conditions" };
let latest = null;

export function decisionsOf(history) {
  return (history?.entries ?? []).filter((entry) => entry.kind === "decision");
}

export function showHistory(data) {
  latest = data;
  const kind = find("kind").value;
  const entries = (data.history?.entries ?? []).filter((entry) => !kind || entry.kind === kind).reverse();
  const rows = entries.map((entry) => [moment(entry.at), entry.kind, entry.subject, entry.text]);
  const empty = data.history ? "Nothing of this kind has happened." : "The process that sizes the pools has announced nothing yet.";
  replace(find("history-list"), table("What changed", ["When", "Kind", "Of", "What"], rows, empty));
}

export function startHistory() {
  for (const [kind, words] of Object.entries(KINDS)) find("kind").append(element("option", { value: kind }, words));
  find("kind").addEventListener("change", () => latest && showHistory(latest));
}
