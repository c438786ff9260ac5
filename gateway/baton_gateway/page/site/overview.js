// The overview: the four questions of somebody on call, figures, charts, pools and workers.

import { timeChart } from "./charts.js";
import { element, find, meter, replace, table } from "./dom.js";
import { DASH, ago, bytes, count, percent, seconds, tenantName } from "./format.js";
import { decisionsOf } from "./history.js";
import { longestDetail, partSums } from "./timeline.js";

const HOUR = 3600;
const JOINED_S = 30;
const PLACE_NAMES = {
  client: "The client", gateway: "The gateway and tenants' quotas", workers: "Missing or lost workers",
  links: "Links and transfers", prefill: "The prefill pool", decode: "The decode pool",
};

export function showOverview(data) {
  replace(find("answers"), answers(data));
  if (!data.viewer.sees_all) return;
  replace(find("figures"), figures(data));
  const rows = joined(seriesRows(data.series));
  const marks = decisionsOf(data.history).map((entry) => ({ at: entry.at, label: `${entry.subject}: ${entry.text}` }));
  const chart = { now: data.at, span: HOUR, marks };
  replace(find("attainment"), timeChart({
    ...chart, most: 1, format: percent,
    lines: [
      { name: `first token${within(data.latency.ttft)}`, points: rows.map((r) => [r.at, share(r.first_in_time, r.first_tokens)]) },
      { name: `time a token${within(data.latency.tpot)}`, points: rows.map((r) => [r.at, share(r.sequences_in_time, r.sequences)]) },
    ],
  }));
  replace(find("throughput"), timeChart({
    ...chart, format: count,
    lines: [
      { name: "prompt", points: rows.map((r) => [r.at, r.prompt_tokens / r.seconds]) },
      { name: "answer", points: rows.map((r) => [r.at, r.completion_tokens / r.seconds]) },
    ],
  }));
  replace(find("load"), timeChart({
    ...chart, format: count,
    lines: [
      { name: "running", points: rows.map((r) => [r.at, r.running]) },
      { name: "waiting", points: rows.map((r) => [r.at, r.waiting]) },
    ],
  }));
  replace(find("pools"), pools(data));
  replace(find("workers"), workers(data));
}

function seriesRows(series) {
  return series.slots.map((slot) =>
    Object.fromEntries([["seconds", series.slot_s], ...series.fields.map((name, place) => [name, slot[place]])]),
  );
}

// Rows of half a minute: counts are added, so shares stay exact; of what ran and waited the most is kept.
function joined(rows) {
  const halves = new Map();
  for (const row of rows) {
    const half = Math.floor(row.at / JOINED_S);
    const former = halves.get(half);
    if (former === undefined) {
      halves.set(half, { ...row });
      continue;
    }
    for (const [name, value] of Object.entries(row)) {
      if (name === "running" || name === "waiting") former[name] = Math.max(former[name], value);
      else if (name !== "at" && !name.endsWith("target_s")) former[name] += value;
    }
  }
  return [...halves.values()];
}

function share(part, whole) {
  return whole ? part / whole : null;
}

function within(latency) {
  return latency.target_s === null ? "" : ` within ${seconds(latency.target_s)}`;
}

function answers(data) {
  const cards = [
    ["What limits us?", limit(data), "#requests"],
    ["Where did the slowest request lose its time?", slowest(data), "#requests"],
  ];
  if (data.viewer.sees_all) {
    cards.splice(1, 0, ["Why these sizes?", sizes(data), "#history"]);
    cards.push(["Who fills us?", busiest(data), "#tenants"]);
  }
  return cards.map(([question, answer, link]) =>
    element("div", { class: "card" }, element("h3", {}, question), element("p", {}, answer),
      element("a", { href: link, "data-key": link + question }, "details")),
  );
}

function limit(data) {
  const found = data.limited_by;
  if (found !== null) {
    const whose = found.tenant && data.tenants.length > 1 ? `, most of them of ${tenantName(found.tenant)}` : "";
    const late = `${found.requests} late or failed requests of the last 5 minutes${whose}`;
    const errors = found.errors > found.requests / 2
      ? `Errors: ${found.errors} of ${found.requests} late or failed requests got ${found.code ?? "one"}. ` : "";
    const detail = found.detail ? ` (${found.detail})` : "";
    return `${errors}${PLACE_NAMES[found.place] ?? found.place}: ${percent(found.share)} of the lost time of ` +
      `${late}, mostly ${found.meaning}${detail}.`;
  }
  if (data.viewer.sees_all && !data.workers.length) return "No worker is linked: requests wait for one.";
  return "Nothing: no request of the last 5 minutes missed a target or failed.";
}

function sizes(data) {
  const reasons = Object.values(data.history?.reasons ?? {});
  const latest = decisionsOf(data.history).at(-1);
  const last = latest === undefined ? [] : [`Last changed ${ago(latest.at, data.at)}: ${latest.subject} ${latest.text}`];
  const words = [...reasons, ...last];
  return words.length ? words.map((text) => element("span", { class: "line-of-text" }, text)) : "The process that sizes the pools has announced nothing yet.";
}

function slowest(data) {
  const record = data.slowest[0];
  if (record === undefined) return "No request has ended yet.";
  const [part, duration] = partSums(record)[0] ?? ["nothing recorded", 0];
  const detail = longestDetail(record, part);
  return `${seconds(duration / 1e9)} of ${seconds(record.duration_ns / 1e9)}: ${data.parts[part] ?? part}${detail ? ` (${detail})` : ""}.`;
}

function busiest(data) {
  const total = data.running + data.waiting;
  const first = data.tenants[0];
  if (first === undefined || !total) return "Nobody: no sequence runs or waits.";
  const own = first.running + first.waiting;
  return `${tenantName(first.name)}: ${percent(own / total)} of ${total} sequences (${first.running} running, ${first.waiting} waiting).`;
}

function figures(data) {
  const { ttft, tpot } = data.latency;
  const tiles = [
    ["Running", count(data.running), "sequences"],
    ["Waiting", count(data.waiting), "sequences at the gateway"],
    ["First token p95", seconds(ttft.p95_s), target(ttft)],
    ["Time a token p95", seconds(tpot.p95_s), target(tpot)],
  ];
  const silent = data.silent.length;
  if (silent) tiles.push(["Silent", count(silent), "gateway processes: figures lack their part"]);
  const replicas = data.silent_replicas ?? [];
  if (replicas.length) tiles.push(["Silent replicas", count(replicas.length), replicas.join("; ")]);
  for (const pool of data.pools.filter((row) => row.missing)) {
    tiles.push([`Missing: ${pool.role}`, count(pool.missing), `of ${pool.wanted} workers: starting, silent or lost`]);
  }
  return tiles.map(([name, value, note]) =>
    element("div", { class: "tile" }, element("span", { class: "name" }, name), element("strong", {}, value),
      element("span", { class: "muted" }, note)),
  );
}

function target(latency) {
  if (latency.target_s === null) return "last minute";
  if (!latency.observations) return `target ${seconds(latency.target_s)}; none in the last minute`;
  return `target ${seconds(latency.target_s)}, ${percent(latency.within)} within`;
}

function pools(data) {
  const rows = data.pools.map((pool) => [
    pool.role, `${pool.live} of ${Math.max(pool.workers, pool.wanted ?? 0)}`, count(pool.running), count(pool.waiting), count(pool.waiting_tokens),
    meter(pool.kv_used, percent(pool.kv_used), 0.9), rate(pool.tokens_per_s),
  ]);
  const columns = ["Pool", "Live", "Running", "Waiting", "Waiting tokens", "KV used", "Rate"];
  return table("List of pools", columns, rows, "No worker is linked.");
}

function rate(value) {
  return value === null ? DASH : `${count(Math.round(value))} tokens/s`;
}

function workers(data) {
  const rows = data.workers.map((worker) => [
    worker.name, worker.role, element("span", { class: `state ${worker.state}` }, worker.state), worker.address,
    count(worker.running), count(worker.waiting), meter(worker.kv_used, percent(worker.kv_used), 0.9),
    rate(worker.tokens_per_s), seconds(worker.step_s), lane(worker), bytes(worker.kv_bytes),
  ]);
  const columns = ["Worker", "Pool", "State", "Address", "Running", "Waiting", "KV used", "Rate", "Step", "Slowest link", "KV moved"];
  return table("List of workers", columns, rows, "No worker is linked.");
}

function lane(worker) {
  if (worker.lane === null) return DASH;
  const slow = worker.lanes_too_slow ? `, ${worker.lanes_too_slow} too slow` : "";
  return `${worker.lane} ${bytes(worker.lane_bytes_per_s)}/s${slow}`;
}
