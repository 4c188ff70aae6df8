// Send the request of a branch, fold its answer while it comes, and let the judge look at it.

import { APIS, emptyAnswer, fold } from "./apis.js";
import { id } from "./dom.js";
import { add, emit, forget, path, put, save, state } from "./state.js";
import { get } from "./storage.js";
import { api, askKey, EventReader, failure, send } from "./stream.js";
import { t } from "./texts.js";

const JUDGED_AFTER = 700; // Milliseconds, while a stream runs; longer where judging takes long.
const MOST_JUDGED = 1.9 * 2 ** 20; // Bytes; the server takes 2 MiB.
const MOST_FRAMES = 20_000;
const SAVED_EVERY = 2000; // Milliseconds, while an answer is written.

function tools({ tools: text, api: name }) {
  if (!text.trim() || name === "completions") return [];
  const found = JSON.parse(text);
  return Array.isArray(found) ? found : [found];
}

export function requestBody(nodes, settings = state.settings) {
  const { api: name, model, system, toolChoice, format, logprobs, params } = settings;
  const stores = name === "responses" && Boolean(state.status?.stores) && params.responses.store !== false;
  const body = APIS[name].build({ nodes, system, tools: tools(settings), toolChoice, format, logprobs, stores });
  return { model, ...body, ...params[name] };
}

export const newRecord = (name, body) => ({
  id: id(), api: name, path: APIS[name].path, body: JSON.stringify(body), at: Date.now(),
  status: 0, headers: [], frames: [], complete: false, judgement: null,
});

export async function run(parent) {
  const conversation = state.conversation;
  const { api: name, model } = state.settings;
  let body;
  try {
    body = requestBody(path(conversation, parent.id));
  } catch (error) {
    emit("problem", t("request_wrong", { problem: error.message }));
    return;
  }
  const record = newRecord(name, body);
  const answer = emptyAnswer();
  const { format } = state.settings;
  const schema = format.kind === "json_schema" ? JSON.parse(format.value) : undefined;
  const node = add(conversation, parent.id, { role: "assistant", api: name, model, answer, schema, record: record.id });
  const live = { node, record, reader: new EventReader(), controller: new AbortController() };
  Object.assign(state, { live, shown: live });
  emit("thread");
  save().then(() => emit("conversations")); // A reload in the middle keeps what was asked.
  const saving = setInterval(save, SAVED_EVERY); // So that a page that is closed keeps what has been written.
  let folded = 0;
  await send(record, live.controller.signal, () => {
    const { events } = live.reader;
    for (live.reader.take(record.frames); folded < events.length; folded++) {
      APIS[name].fold(answer, events[folded]);
      timeThoughts(node, answer, events[folded].time);
    }
    emit("answer", live);
    judgeSoon(live);
  });
  clearInterval(saving);
  state.live = null;
  if (record.status === 401) {
    forget(conversation, node);
    if (await askKey(t("key_refused"))) return run(parent);
    emit("problem", t("key_needed"));
    return emit("thread");
  }
  if (record.status >= 400) answer.error = failure(await new Blob(record.frames.map(([, data]) => data)).text(), record.status);
  if (record.error) answer.error = { message: record.error };
  if (record.error || record.status === 404) emit("stale"); // The server may have another model now.
  if (record.stopped) answer.finish = "stopped";
  node.seconds = record.seconds;
  node.requestId = record.headers.find(([each]) => each === "x-request-id")?.[1];
  node.firstToken = record.frames[0]?.[0];
  emit("thread");
  emit("answer", live);
  await Promise.all([save(), keep(record)]);
  await judge(live, record.complete);
  await keep(record);
}

// A browser takes long to keep thousands of reads, so they are kept as one.
export async function keep(record) {
  const { frames, ...rest } = record;
  const data = new Uint8Array(await new Blob(frames.map((each) => each[1])).arrayBuffer());
  return put("records", { ...rest, data, times: Float64Array.from(frames, ([time]) => time), sizes: Uint32Array.from(frames, (each) => each[1].length) });
}

function unpacked({ data, times, sizes, ...record }) {
  if (!data) return record;
  let place = 0;
  return { ...record, frames: Array.from(times, (time, number) => [time, data.subarray(place, (place += sizes[number]))]) };
}

// Note when the thinking of an answer began, and when it was last known to go on.
function timeThoughts(node, answer, time) {
  if (!answer.thinking && !answer.summary) return;
  const thought = (node.thought ??= { from: time, to: time, ended: false });
  if (!thought.ended) thought.to = time;
  thought.ended ||= Boolean(answer.text || answer.calls.length);
}

export const stop = () => state.live?.controller.abort();

function base64(data) {
  if (data.toBase64) return data.toBase64();
  let text = "";
  for (let at = 0; at < data.length; at += 8192) text += String.fromCharCode(...data.subarray(at, at + 8192));
  return btoa(text);
}

// The frames of a record in base64, each made once.
function encoded(live) {
  live.sent ??= [];
  live.size ??= 0;
  for (const [time, data] of live.record.frames.slice(live.sent.length)) {
    live.size += data.length;
    if (live.size > MOST_JUDGED) break;
    live.sent.push([time, base64(data)]);
  }
  return live.sent;
}

function judgeSoon(live) {
  if (live.waiting) return;
  live.waiting = true;
  setTimeout(async () => {
    const began = performance.now();
    if (!live.record.complete && !live.record.stopped) await judge(live, false);
    live.took = performance.now() - began;
    live.waiting = false;
  }, Math.max(JUDGED_AFTER, 3 * (live.took || 0)));
}

async function judge(live, complete) {
  const { record } = live;
  const sent = encoded(live);
  if (!record.status || live.size + record.body.length > MOST_JUDGED || record.frames.length > MOST_FRAMES) return;
  try {
    const response = await api("/page/judge", { method: "POST", body: JSON.stringify({
      path: record.path, request: base64(new TextEncoder().encode(record.body)), status: record.status, complete,
      headers: record.headers, frames: sent,
    }) });
    const judgement = await response.json();
    if (!record.judgement?.complete) record.judgement = { ...judgement, complete };
  } catch (error) {
    record.judgement ??= { failed: error.message, events: [], findings: [], rules: {} };
  }
  emit("judged", live);
}

// Show the events of an answer that was recorded earlier.
export async function show(node) {
  if (state.live?.node === node) state.shown = state.live;
  else {
    const found = node.record && (await get("records", node.record));
    if (!found) return;
    const record = unpacked(found);
    const reader = new EventReader();
    reader.take(record.frames);
    if (record.body.includes('logprobs"') && !node.answer.tokens.length) node.answer.tokens = fold(record.api, reader.events).tokens;
    state.shown = { node, record, reader };
    judgeAgain(state.shown);
  }
  emit("shown");
}

// Judge an answer whose page was left or loaded again before its verdict came.
async function judgeAgain(shown) {
  const { complete, judgement } = shown.record;
  if (judgement && (judgement.complete || !complete)) return;
  await judge(shown, complete);
  await keep(shown.record);
}
