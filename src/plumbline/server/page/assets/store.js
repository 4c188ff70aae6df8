// Keep conversations and the records of their requests in this browser (IndexedDB).
//
// A conversation is a tree: each message names its parent, so that an edited or repeated message is a new branch.

import { id } from "./dom.js";

let database;
const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function objects(name, mode) {
  if (!database) {
    const opening = indexedDB.open("plumbline", 1);
    opening.onupgradeneeded = () => {
      for (const each of ["conversations", "records"]) opening.result.createObjectStore(each, { keyPath: "id" });
    };
    database = promised(opening);
  }
  return (await database).transaction(name, mode).objectStore(name);
}

export const put = async (name, value) => promised((await objects(name, "readwrite")).put(value));
export const get = async (name, key) => promised((await objects(name, "readonly")).get(key));
export const all = async (name) => promised((await objects(name, "readonly")).getAll());

export async function remove(conversation) {
  for (const node of Object.values(conversation.nodes)) {
    if (node.record) await promised((await objects("records", "readwrite")).delete(node.record));
  }
  await promised((await objects("conversations", "readwrite")).delete(conversation.id));
}

export const newConversation = (api, model) =>
  ({ id: id(), title: "", api, model, at: Date.now(), nodes: {}, leaf: null });

export function add(conversation, parent, node) {
  const added = { id: id(), parent, at: Date.now() + Object.keys(conversation.nodes).length / 1e3, ...node };
  conversation.nodes[added.id] = added;
  conversation.leaf = added.id;
  conversation.at = Date.now();
  if (!conversation.title && node.role === "user") conversation.title = (node.text || "Picture").slice(0, 60);
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
