// Requests: the slowest, the latest that missed a target, and the one that was asked for.

import { element, find, replace, table } from "./dom.js";
import { count, nanoseconds, seconds, tenantName } from "./format.js";
import { longestDetail, partSums, requestDetail, stackedBar } from "./timeline.js";

let chosen = null; // the record that is shown
let latest = null; // the latest data
const asked = { id: null, found: undefined };

export function askedId() {
  return asked.id;
}

export function showRequests(data) {
  latest = data;
  if (asked.id !== null && data.found !== null) {
    asked.found = data.found;
    replace(find("found"), foundWords(data.found));
    if (data.found.length) choose(data.found[0]);
    asked.id = null;
  }
  const records = find("which").value === "missed" ? data.missed : data.slowest;
  const rows = records.map((record) => [
    element("button", { class: "link", "data-key": record.id, onclick: () => choose(record, true) }, record.id),
    tenantName(record.tenant),
    `${count(record.prompt_tokens)} + ${count(record.completion_tokens)}`,
    nanoseconds(record.duration_ns),
    seconds(record.ttft_s),
    element("span", {}, stackedBar(record), largest(record)),
    record.code || record.outcome,
  ]);
  const columns = ["Request", "Tenant", "Tokens", "Took", "First token", "Where its time went", "Outcome"];
  replace(find("request-list"), table("List of requests", columns, rows, "No such request is kept."));
}

function largest(record) {
  const [part, duration] = partSums(record)[0] ?? [null, 0];
  const detail = longestDetail(record, part);
  return part === null ? "nothing recorded" : `${part} ${nanoseconds(duration)}${detail ? `, ${detail}` : ""}`;
}

function foundWords(found) {
  return found.length ? "" : "No record of this request is kept: it is unknown, another tenant's, or made room for later ones.";
}

function choose(record, moves = false) {
  chosen = record;
  replace(find("request-detail"), requestDetail(chosen, latest.parts));
  if (moves) find("request-detail").focus();
}

export function seekRequest(id) {
  asked.id = id;
  find("find").value = id;
  replace(find("found"), "Looking …");
}

export function startRequests(refresh) {
  find("find-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = find("find").value.trim();
    if (!id) return;
    seekRequest(id);
    refresh();
  });
  find("which").addEventListener("change", () => latest && showRequests(latest));
}
