// A chat with the model: streamed, with tools, a schema, seeds and log probabilities, and two answers side by side.

import { element, find, replace } from "./dom.js";
import { percent, seconds } from "./format.js";
import { seekRequest } from "./requests.js";

const SIDES = ["a", "b"];
const talks = { a: [], b: [] };
let headersOf = () => ({});
let stopping = null;

export function showPlayground(data) {
  const select = find("model");
  const known = [...select.options].map((option) => option.value);
  if (known.join("\n") === data.models.join("\n")) return;
  const before = select.value;
  replace(select, data.models.map((model) => element("option", { value: model }, model)));
  if (data.models.includes(before)) select.value = before;
}

export function startPlayground(keyHeaders) {
  headersOf = keyHeaders;
  find("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  find("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("chat-form").requestSubmit();
  });
  find("stop").addEventListener("click", () => stopping?.abort());
  find("clear").addEventListener("click", clear);
  find("compare").addEventListener("change", () => {
    document.querySelector('[data-side="b"]').hidden = !find("compare").checked;
  });
}

function clear() {
  stopping?.abort();
  for (const side of SIDES) {
    talks[side] = [];
    replace(find(`talk-${side}`));
  }
}

function settings(side) {
  const number = (id) => (find(id).value === "" ? undefined : Number(find(id).value));
  const body = {
    model: find("model").value,
    max_tokens: number("max-tokens"),
    temperature: number(`temperature-${side}`),
    seed: number(`seed-${side}`),
    stream: true,
    stream_options: { include_usage: true },
  };
  if (find("logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  const tools = parsed("tools", "Tools");
  if (tools !== undefined) body.tools = tools;
  const schema = parsed("schema", "Schema of the answer");
  if (schema !== undefined) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return body;
}

function parsed(id, name) {
  const text = find(id).value.trim();
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: this is not JSON: ${error.message}`);
  }
}

async function send() {
  const problem = find("chat-problem");
  problem.textContent = "";
  const sides = find("compare").checked ? SIDES : ["a"];
  const text = find("prompt").value;
  let bodies;
  try {
    bodies = sides.map((side) => settings(side));
  } catch (error) {
    problem.textContent = error.message;
    return;
  }
  stopping = new AbortController();
  find("stop").disabled = false;
  const system = find("system").value.trim();
  await Promise.all(sides.map((side, place) => {
    const history = [...talks[side], { role: "user", content: text }];
    const messages = system ? [{ role: "system", content: system }, ...history] : history;
    return ask(side, { ...bodies[place], messages }, history, stopping.signal);
  }));
  find("stop").disabled = true;
  find("prompt").value = "";
}

async function ask(side, body, history, signal) {
  const talk = find(`talk-${side}`);
  const answer = element("div", { class: "answer" });
  const note = element("p", { class: "muted note" }, "waiting …");
  talk.append(element("div", { class: "asked" }, history.at(-1).content), answer, note);
  const state = { text: "", calls: [], began: performance.now(), first: null, usage: null, finish: null, decoder: new TextDecoder() };
  let id = null;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", signal, headers: { "Content-Type": "application/json", ...headersOf() }, body: JSON.stringify(body),
    });
    id = response.headers.get("X-Request-Id");
    if (!response.ok) throw new Error(await refusal(response));
    for await (const chunk of events(response)) take(chunk, state, answer);
    const message = { role: "assistant", content: state.text };
    if (state.calls.length) message.tool_calls = state.calls;
    talks[side] = [...history, message];
    replace(note, summary(state), timeLink(id));
  } catch (error) {
    replace(note, error.name === "AbortError" ? "stopped" : error.message, timeLink(id));
    note.classList.add("problem");
  }
  talk.scrollTop = talk.scrollHeight;
}

async function refusal(response) {
  try {
    return `${response.status}: ${(await response.json()).error.message}`;
  } catch {
    return `status ${response.status}`;
  }
}

// The events of a stream, as objects.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const chunk = JSON.parse(line.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}

function take(chunk, state, answer) {
  if (chunk.usage) state.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (choice === undefined) return;
  state.finish = choice.finish_reason ?? state.finish;
  const delta = choice.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (state.first === null && (delta.content || thought || delta.tool_calls)) state.first = performance.now();
  if (thought) answer.append(element("span", { class: "thought" }, thought));
  const tokens = choice.logprobs?.content ?? [];
  if (tokens.length) answer.append(...tokens.map((entry) => token(entry, state.decoder)));
  else if (delta.content) answer.append(document.createTextNode(delta.content));
  state.text += delta.content ?? "";
  for (const call of delta.tool_calls ?? []) takeCall(call, state, answer);
}

function takeCall(call, state, answer) {
  let known = state.calls[call.index];
  if (known === undefined) {
    known = state.calls[call.index] = { id: call.id, type: "function", function: { name: "", arguments: "" } };
    answer.append(element("pre", { class: "call" }));
  }
  known.function.name += call.function?.name ?? "";
  known.function.arguments += call.function?.arguments ?? "";
  answer.querySelectorAll("pre.call")[call.index].textContent = `${known.function.name}(${known.function.arguments})`;
}

// A token may end in the middle of a character, which is shown with the token that completes it.
function token(entry, decoder) {
  const text = entry.bytes ? decoder.decode(new Uint8Array(entry.bytes), { stream: true }) : entry.token;
  const probability = Math.exp(entry.logprob);
  const others = entry.top_logprobs.map((other) => `${JSON.stringify(other.token)} ${percent(Math.exp(other.logprob))}`);
  const level = Math.min(4, Math.floor(probability * 5));
  return element("span", { class: `token p${level}`, title: others.join("\n") || percent(probability) }, text);
}

function summary(state) {
  const took = (performance.now() - state.began) / 1e3;
  const first = state.first === null ? null : (state.first - state.began) / 1e3;
  const tokens = state.usage?.completion_tokens;
  const after = first === null ? took : took - first;
  const rate = tokens > 1 && after > 0 ? `, ${((tokens - 1) / after).toFixed(1)} tokens/s` : "";
  return `${state.finish ?? "ended"} · first token ${seconds(first)} · ${tokens ?? "?"} tokens in ${seconds(took)}${rate} `;
}

function timeLink(id) {
  return id === null ? null : element("a", { href: "#requests", onclick: () => seekRequest(id) }, "where did its time go?");
}
