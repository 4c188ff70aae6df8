// What the parts of the page share: the conversation, the settings, the answer that is being written, and changes.
//
// A conversation is a tree: each message names its parent, so that an edited or repeated message is a new branch.

import { id } from "./dom.js";
import { announce, drop, get, put as write, putConversation, take } from "./storage.js";
import { t } from "./texts.js";

const STARTING = {
  api: "chat", model: "", system: "", tools: "", toolChoice: "auto", logprobs: false,
  format: { kind: "text", value: "" }, params: { chat: {}, completions: {}, responses: {}, messages: {} },
};

// The settings of the last visit; what an older page wrote may lack members, or be no JSON.
function lastSettings() {
  try {
    const { params, ...found } = JSON.parse(localStorage.getItem("settings") || "{}");
    return { ...STARTING, ...found, params: { ...STARTING.params, ...params } };
  } catch {
    return STARTING;
  }
}

export const state = {
  settings: lastSettings(),
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

// A browser may have no room left.
const notKept = (error) => emit("problem", t("kept_not", { problem: error.message }));
export const put = (name, value) => write(name, value).catch(notKept);

// Keep the conversation; other tabs hear of it, unless an answer is being written.
export async function save() {
  const { conversation } = state;
  localStorage.setItem("conversation", conversation.id);
  await putConversation(conversation).catch(notKept);
  if (!state.live) announce(conversation.id);
}

// Take over what another tab has written; true if it belongs to the conversation that is shown.
export async function follow(name) {
  const { conversation } = state;
  if (name !== conversation.id || state.live) return false;
  take(conversation, await get("conversations", name));
  if (conversation.leaf) choose(conversation, conversation.nodes[conversation.leaf]);
  return true;
}

const listeners = {};
export const on = (name, listener) => (listeners[name] ??= []).push(listener);
export const emit = (name, value) => (listeners[name] || []).forEach((listener) => listener(value));

export const modelFacts = () => state.status?.models.find((model) => model.names.includes(state.settings.model));
// What a parameter is where a request leaves it out: the model's own default, or the contract's.
export const usualOf = (control, model) =>
  state.models.find(({ id }) => id === model)?.default_sampling_params?.[control.name] ?? control.default;
export const readsPictures = () => Boolean(modelFacts()?.engine.modalities.includes("image"));

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

// Forget a message that has no answer, also where it was kept already.
export function forget(conversation, node) {
  delete conversation.nodes[node.id];
  conversation.removed = [...(conversation.removed || []), node.id];
  conversation.leaf = node.parent;
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
