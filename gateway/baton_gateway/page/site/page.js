// The page: asks for its data once a second while somebody looks at it, and shows one panel.

import { find } from "./dom.js";
import { time } from "./format.js";
import { showHistory, startHistory } from "./history.js";
import { showOverview } from "./overview.js";
import { showPlayground, startPlayground } from "./playground.js";
import { askedId, showRequests, startRequests } from "./requests.js";
import { showTenants } from "./tenants.js";

const EVERY_MS = 1000;
const RETRY_MS = 5000;
const DEADLINE_MS = 8000;
const PANELS = ["overview", "requests", "tenants", "history", "playground"];
const KEY = "baton-key"; // forgotten when the tab closes

let data = null;
let timer = 0;
let isAsking = false;
let isWanted = false;

export function keyHeaders() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function refresh() {
  if (isAsking) {
    isWanted = true;
    return;
  }
  clearTimeout(timer);
  isAsking = true;
  let pause = EVERY_MS;
  try {
    const id = askedId();
    const query = id === null ? "" : `?${new URLSearchParams({ id })}`;
    const options = { headers: keyHeaders(), cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS) };
    const response = await fetch(`data.json${query}`, options);
    if (response.ok) {
      data = await response.json();
      refuse(null);
      show();
      find("status").textContent = `${who()} · ${time(data.at)}`;
    } else {
      refuse(response.status);
      pause = RETRY_MS;
    }
  } catch (error) {
    find("status").textContent = `No answer: ${error.name === "TimeoutError" ? "it took too long" : error.message}. Trying again.`;
    pause = RETRY_MS;
  }
  isAsking = false;
  if (isWanted) pause = EVERY_MS / 4;
  isWanted = false;
  if (!document.hidden) timer = setTimeout(refresh, pause);
}

function who() {
  return data.viewer.sees_all ? "Live, all tenants" : `Live, tenant ${data.viewer.tenant}`;
}

function refuse(status) {
  const box = find("refusal");
  box.hidden = status === null;
  document.body.classList.toggle("refused", status !== null);
  if (status === null) return;
  const words = {
    401: "An API key is needed to see this: your own for your requests, one with the role operator for everything.",
    403: "Clients of this gateway need no key, so this page is for its own machine. Open it there, or give the operator's token.",
  };
  box.textContent = words[status] ?? `The gateway answers with status ${status}.`;
  find("status").textContent = "Nothing is shown";
}

function show() {
  if (data === null) return;
  document.body.classList.toggle("all", data.viewer.sees_all);
  find("to-history").hidden = !data.viewer.sees_all;
  find("to-playground").hidden = !data.playground;
  const panel = current();
  if (panel === "overview") showOverview(data);
  if (panel === "requests") showRequests(data);
  if (panel === "tenants") showTenants(data);
  if (panel === "history") showHistory(data);
  if (panel === "playground") showPlayground(data);
}

function current() {
  const wanted = location.hash.slice(1);
  return PANELS.includes(wanted) ? wanted : "overview";
}

function turn() {
  const panel = current();
  for (const name of PANELS) find(name).hidden = name !== panel;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${panel}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  show();
}

function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  find("key").value = "";
  find("key").placeholder = key ? "in use" : "none";
  find("key-forget").hidden = !key;
  data = null;
  refresh();
}

function start() {
  find("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(find("key").value.trim());
  });
  find("key-forget").addEventListener("click", () => useKey(""));
  find("key").placeholder = sessionStorage.getItem(KEY) ? "in use" : "none";
  find("key-forget").hidden = !sessionStorage.getItem(KEY);
  startRequests(refresh);
  startHistory();
  startPlayground(keyHeaders);
  addEventListener("hashchange", turn);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  turn();
  refresh();
}

start();
