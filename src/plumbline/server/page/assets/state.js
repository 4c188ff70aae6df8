// What the parts of the page share: the conversation, the settings, the answer that is being written, and changes.
// Conversations and the records of their requests are kept in this browser (IndexedDB).
//
// A conversation is a tree: each message names its parent, so that an edited or repeated message is a new branch.

import { id } from "./dom.js";
import { t } from "./texts.js";

const STARTING = {
  api: "chat", model: "", system: "", tools: "", toolChoice: "auto", logprobs: false,
  format: { kind: "text", value: "" }, params: { chat: {}, completions: {}, responses: {}, messages: {} },
};

export const state = {
  settings: { ...STARTING, ...JSON.parse(localStorage.getItem("settings") || "{}") },
  conversation: null,
  live: null, // { node, record, reader, controller } of the answer that is being written
  shown: null, // { record, reader } of the answer whose events the panel shows
  models: [],
  controls: {},
  status: null,
};

export function saveSettings() {
  localStorage.setItem("settings", JSON.stringify(state.settings));
}

export function begin() {
  state.conversation = newConversation(state.settings.api, state.settings.model);
}

export function save() {
  localStorage.setItem("conversation", state.conversation.id);
  return put("conversations", state.conversation);
}

const listeners = {};
export const on = (name, listener) => (listeners[name] ??= []).push(listener);
export const emit = (name, value) => (listeners[name] || []).forEach((listener) => listener(value));

export const modelFacts = () => state.status?.models.find((model) => model.names.includes(state.settings.model));
// What a parameter is where a request leaves it out: the model's own default, or the contract's.
export const usualOf = (control, model) =>
  state.models.find(({ id }) => id === model)?.default_sampling_params?.[control.name] ?? control.default;
export const readsPictures = () => Boolean(modelFacts()?.engine.modalities.includes("image"));

const STORES = ["conversations", "records"];
const memory = Object.fromEntries(STORES.map((name) => [name, new Map()])); // Where a browser keeps nothing.
let database;
const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function opened() {
  try {
    const opening = indexedDB.open("plumbline", 1);
    opening.onupgradeneeded = () => STORES.forEach((each) => opening.result.createObjectStore(each, { keyPath: "id" }));
    return await promised(opening);
  } catch {
    return null;
  }
}

// Do something with a store of the browser, or else with the one in memory.
async function using(name, mode, kept, lost) {
  const found = await (database ??= opened());
  return found ? promised(kept(found.transaction(name, mode).objectStore(name))) : lost(memory[name]);
}

export const put = (name, value) =>
  using(name, "readwrite", (store) => store.put(value), (map) => map.set(value.id, value));
export const get = (name, key) => using(name, "readonly", (store) => store.get(key), (map) => map.get(key));
export const all = (name) => using(name, "readonly", (store) => store.getAll(), (map) => [...map.values()]);
const drop = (name, key) => using(name, "readwrite", (store) => store.delete(key), (map) => map.delete(key));

export async function remove(conversation) {
  for (const node of Object.values(conversation.nodes)) {
    if (node.record) await drop("records", node.record);
  }
  await drop("conversations", conversation.id);
}

export const newConversation = (api, model) =>
  ({ id: id(), title: "", api, model, at: Date.now(), nodes: {}, leaf: null });

export function add(conversation, parent, node) {
  const added = { id: id(), parent, at: Date.now() + Object.keys(conversation.nodes).length / 1e3, ...node };
  conversation.nodes[added.id] = added;
  conversation.leaf = added.id;
  conversation.at = Date.now();
  if (!conversation.title && node.role === "user") conversation.title = (node.text || t("picture_only")).slice(0, 60);
  return added;
}

export function path(conversation, leaf = conversation.leaf) {
  const found = [];
  for (let node = conversation.nodes[leaf]; node; node = conversation.nodes[node.parent]) found.unshift(node);
  return found;
}

export const siblings = (conversation, node) =>
  Object.values(conversation.nodes).filter((each) => each.parent === node.parent && each.role === node.role)
    .sort((one, other) => one.at - other.at);

// Show the branch that a message is on, down to its newest end.
export function choose(conversation, node) {
  let leaf = node;
  for (let next = leaf; next; ) {
    leaf = next;
    next = Object.values(conversation.nodes).filter((each) => each.parent === leaf.id)
      .sort((one, other) => other.at - one.at)[0];
  }
  conversation.leaf = leaf.id;
}
