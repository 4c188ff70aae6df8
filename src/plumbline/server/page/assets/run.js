// Send the request of a branch, fold its answer while it comes, and let the judge look at it.

import { APIS, emptyAnswer } from "./apis.js";
import { id } from "./dom.js";
import { add, emit, get, path, put, save, state } from "./state.js";
import { api, askKey, EventReader, failure, send } from "./stream.js";

const JUDGED_AFTER = 700; // Milliseconds, while a stream runs; longer where judging takes long.
const MOST_JUDGED = 1.9 * 2 ** 20; // Bytes; the server takes 2 MiB.

export function tools() {
  const { tools: text, api: name } = state.settings;
  if (!text.trim() || name === "completions") return [];
  const found = JSON.parse(text);
  return Array.isArray(found) ? found : [found];
}

export function requestBody(nodes) {
  const { api: name, model, system, toolChoice, format, logprobs, params } = state.settings;
  const stores = name === "responses" && Boolean(state.status?.stores) && params.responses.store !== false;
  const body = APIS[name].build({ nodes, system, tools: tools(), toolChoice, format, logprobs, stores });
  return { model, ...body, ...params[name] };
}

export async function run(parent) {
  const conversation = state.conversation;
  const { api: name, model } = state.settings;
  let body;
  try {
    body = requestBody(path(conversation, parent.id));
  } catch (error) {
    emit("problem", `The request cannot be written: ${error.message}`);
    return;
  }
  const record = {
    id: id(), api: name, path: APIS[name].path, body: JSON.stringify(body), at: Date.now(),
    status: 0, headers: [], frames: [], complete: false, judgement: null,
  };
  const answer = emptyAnswer();
  const node = add(conversation, parent.id, { role: "assistant", api: name, model, answer, record: record.id });
  const live = { node, record, reader: new EventReader(), controller: new AbortController() };
  Object.assign(state, { live, shown: live });
  emit("thread");
  save().then(() => emit("conversations")); // A reload in the middle keeps what was asked.
  let folded = 0;
  await send(record, live.controller.signal, () => {
    const { events } = live.reader;
    for (live.reader.take(record.frames); folded < events.length; folded++) APIS[name].fold(answer, events[folded]);
    emit("answer", live);
    judgeSoon(live);
  });
  state.live = null;
  if (record.status === 401) {
    delete conversation.nodes[node.id];
    conversation.leaf = parent.id;
    if (await askKey("The server does not accept this key.")) return run(parent);
    emit("problem", "The server needs a key.");
    return emit("thread");
  }
  if (record.status >= 400) answer.error = failure(await new Blob(record.frames.map(([, data]) => data)).text(), record.status);
  if (record.error) answer.error = { message: record.error };
  if (record.stopped) answer.finish = "stopped";
  node.seconds = record.seconds;
  node.requestId = record.headers.find(([each]) => each === "x-request-id")?.[1];
  node.firstToken = record.frames[0]?.[0];
  emit("thread");
  emit("answer", live);
  await Promise.all([save(), put("records", record)]);
  await judge(live, record.complete);
  await put("records", record);
}

export const stop = () => state.live?.controller.abort();

const base64 = (data) => data.toBase64?.() ?? btoa(Array.from(data, (each) => String.fromCharCode(each)).join(""));

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
  const size = record.frames.reduce((sum, [, data]) => sum + data.length, record.body.length);
  if (!record.status || size > MOST_JUDGED) return;
  try {
    const response = await api("/page/judge", { method: "POST", body: JSON.stringify({
      path: record.path, request: base64(new TextEncoder().encode(record.body)), status: record.status, complete,
      headers: record.headers, frames: record.frames.map(([time, data]) => [time, base64(data)]),
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
    const record = node.record && (await get("records", node.record));
    if (!record) return;
    const reader = new EventReader();
    reader.take(record.frames);
    state.shown = { node, record, reader };
  }
  emit("shown");
}
