// What the parts of the page share: the conversation, the settings, the answer that is being written, and changes.

import { newConversation, put } from "./store.js";

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
export const readsPictures = () => Boolean(modelFacts()?.engine.modalities.includes("image"));
