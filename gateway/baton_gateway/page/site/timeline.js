// One request's time: a bar for each span, the parts by their size, and what was attempted.

import { element, shape, table } from "./dom.js";
import { DASH, count, moment, nanoseconds, percent, seconds, tenantName } from "./format.js";

export const PLACES = {
  receiving: "client", sending: "client",
  queued: "gateway", rendering: "gateway", tokenising: "gateway", compiling: "gateway", preparing: "gateway",
  routing: "gateway", gateway_stalled: "gateway",
  parked: "workers", held: "workers", lost_attempt: "workers", backing_off: "workers", worker_silent: "workers",
  links: "links", transfer: "links",
  prefill_queue: "prefill", prefill: "prefill", first_token: "prefill",
  reservation: "decode", decode_queue: "decode", decoding: "decode", slow_gaps: "decode", preempted: "decode",
};

export function partSums(record) {
  const sums = new Map();
  for (const [part, , duration] of record.spans) sums.set(part, (sums.get(part) ?? 0) + duration);
  return [...sums].sort((one, other) => other[1] - one[1]);
}

// What the longest span of a part says besides, such as the pool that was waited for.
export function longestDetail(record, part) {
  const spans = record.spans.filter((span) => span[0] === part);
  return spans.reduce((longest, span) => (span[2] > longest[2] ? span : longest), [part, 0, -1, "", ""])[3];
}

export function stackedBar(record) {
  const bar = shape("svg", { class: "stacked", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const [part, start, duration] of record.spans) {
    const scale = 1000 / Math.max(1, record.duration_ns);
    const width = Math.max(1, duration * scale);
    bar.append(shape("rect", { class: `place-${PLACES[part] ?? "gateway"}`, x: start * scale, y: 0, width, height: 10 }));
  }
  return bar;
}

export function requestDetail(record, parts) {
  const workers = (name) => (record.workers[name] ? `${name} (${record.workers[name]})` : name);
  const facts = [
    ["Tenant", tenantName(record.tenant)],
    ["Model", record.model],
    ["Began", moment(record.started_at)],
    ["Took", nanoseconds(record.duration_ns)],
    ["Outcome", record.code ? `${record.outcome} (${record.code})` : record.outcome],
    ["First token after", seconds(record.ttft_s)],
    ["A token each", seconds(record.tpot_s)],
    ["Tokens", `${count(record.prompt_tokens)} in, ${count(record.cached_tokens)} of them cached; ` +
      `${count(record.completion_tokens)} out`],
  ];
  const sums = partSums(record).map(([part, duration]) => [
    element("span", { class: "part" }, element("span", { class: `dot place-${PLACES[part] ?? "gateway"}`, "aria-hidden": "true" }), part),
    nanoseconds(duration),
    percent(duration / record.duration_ns),
    (parts[part] ?? "") + (longestDetail(record, part) ? ` (${longestDetail(record, part)})` : ""),
  ]);
  const spans = record.spans.map(([part, start, duration, detail, worker]) => [
    nanoseconds(start), part, nanoseconds(duration), worker ? workers(worker) : DASH, detail || DASH,
  ]);
  const attempts = record.attempts.map((attempt) => [
    String(attempt.number), attempt.route, attempt.prefill ? workers(attempt.prefill) : DASH, workers(attempt.decode),
    attempt.reason ? `${attempt.reason}, blamed on ${attempt.blamed || "nobody"}` : "reached its end",
  ]);
  return [
    element("h3", {}, record.id),
    element("dl", { class: "facts" }, facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))),
    waterfall(record),
    table("Parts of the request's time", ["Part", "Time", "Share", "Meaning"], sums, "No part was recorded."),
    record.missing.length ? element("p", { class: "notice" }, `Missing in this record: ${record.missing.join(", ")}.`) : null,
    element("details", {}, element("summary", {}, "Attempts"),
      table("Attempts", ["No.", "Route", "Prefill", "Decode", "End"], attempts, "No worker was asked.")),
    element("details", {}, element("summary", {}, "Spans in order"),
      table("Spans in order", ["After", "Part", "Time", "Worker", "Detail"], spans, "No span was recorded.")),
  ];
}

function waterfall(record) {
  const rows = partRows(record);
  const height = rows.length * 18;
  const label = partSums(record).slice(0, 3).map(([part, duration]) => `${part} ${nanoseconds(duration)}`).join(", ");
  const drawing = shape("svg", { class: "waterfall", viewBox: `0 0 600 ${height}`, role: "img", "aria-label": `Most time: ${label}` });
  const scale = 470 / Math.max(1, record.duration_ns);
  rows.forEach(([part, spans], row) => {
    drawing.append(shape("text", { class: "axis", x: 112, y: row * 18 + 12, "text-anchor": "end" }, part));
    for (const [, start, duration, detail] of spans) {
      const attributes = { class: `place-${PLACES[part] ?? "gateway"}`, x: 120 + start * scale, y: row * 18 + 3, width: Math.max(1.5, duration * scale), height: 12 };
      drawing.append(shape("rect", attributes, shape("title", {}, `${part} ${nanoseconds(duration)} ${detail}`)));
    }
  });
  return drawing;
}

function partRows(record) {
  const rows = new Map();
  for (const span of record.spans) rows.set(span[0], [...(rows.get(span[0]) ?? []), span]);
  return [...rows];
}
