// What this browser keeps: conversations, and the records of their requests (IndexedDB), or memory where it keeps nothing.

const STORES = ["conversations", "records"];
const LISTED = "listed"; // An index that has the list of conversations, so that it is read without their messages.
const memory = Object.fromEntries(STORES.map((name) => [name, new Map()]));
let database;

const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab has an older page"));
  });

async function opened() {
  try {
    const opening = indexedDB.open("plumbline", 2);
    opening.onupgradeneeded = ({ oldVersion }) => {
      if (!oldVersion) STORES.forEach((each) => opening.result.createObjectStore(each, { keyPath: "id" }));
      opening.transaction.objectStore("conversations").createIndex(LISTED, ["at", "title"]);
    };
    const found = await promised(opening);
    found.onversionchange = () => found.close();
    return found;
  } catch {
    return null;
  }
}

// Do something with a store of the browser, or else with the one in memory.
async function using(name, mode, kept, lost) {
  const found = await (database ??= opened());
  return found ? kept(found.transaction(name, mode).objectStore(name)) : lost(memory[name]);
}

export const put = (name, value) =>
  using(name, "readwrite", (store) => promised(store.put(value)), (map) => map.set(value.id, value));
export const get = (name, key) => using(name, "readonly", (store) => promised(store.get(key)), (map) => map.get(key));
export const all = (name) => using(name, "readonly", (store) => promised(store.getAll()), (map) => [...map.values()]);
export const drop = (name, key) => using(name, "readwrite", (store) => promised(store.delete(key)), (map) => map.delete(key));

function listed(store) {
  const found = [];
  const request = store.index(LISTED).openKeyCursor(null, "prev");
  return new Promise((resolve, reject) => {
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      const cursor = request.result;
      if (!cursor) return resolve(found);
      const [at, title] = cursor.key;
      found.push({ id: cursor.primaryKey, at, title });
      return cursor.continue();
    };
  });
}

// The identifiers, times and titles of all conversations, the newest first.
export const list = () =>
  using("conversations", "readonly", listed, (map) => [...map.values()].sort((one, other) => other.at - one.at));

// Take messages that another tab has added to a conversation.
export function take(conversation, found) {
  const removed = new Set(conversation.removed);
  for (const [id, node] of Object.entries(found?.nodes || {})) {
    if (!removed.has(id)) conversation.nodes[id] ??= node;
  }
}

// A conversation without the probabilities of tokens, which the records of its answers have: copying them takes long.
function slim(conversation) {
  const nodes = Object.values(conversation.nodes).map((node) =>
    (node.answer?.tokens.length ? { ...node, answer: { ...node.answer, tokens: [] } } : node));
  return { ...conversation, nodes: Object.fromEntries(nodes.map((node) => [node.id, node])) };
}

// Write a conversation. What another tab has added to it stays.
export const putConversation = (conversation) =>
  using("conversations", "readwrite", async (store) => {
    take(conversation, await promised(store.get(conversation.id)));
    await promised(store.put(slim(conversation)));
  }, (map) => map.set(conversation.id, conversation));

// Tabs tell each other which conversation they have written.
const channel = globalThis.BroadcastChannel && new BroadcastChannel("plumbline");
export const announce = (id) => channel?.postMessage(id);
export const onAnnounced = (listener) => channel?.addEventListener("message", ({ data }) => listener(data));
