// Send requests to the server, and record the bytes of answers with the times of their arrival.

import { $ } from "./dom.js";
import { t } from "./texts.js";

export const key = () => sessionStorage.getItem("key") || "";

// The address of the server, without a slash at its end. A proxy may serve it below a path.
export const base = document.baseURI.replace(/\/[^/]*$/, "");

let asking = null; // Several requests can be refused at once; they wait for the same key.
// Ask for a key; true if one was given, false if the dialog was closed without one.
export function askKey(why) {
  const dialog = $("key");
  if (why) $("key-why").textContent = why;
  if (!dialog.open) dialog.showModal();
  return (asking ??= new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const given = $("key-value").value.trim();
      sessionStorage.setItem("key", given);
      $("key-value").value = "";
      asking = null;
      resolve(given !== "");
    }, { once: true });
  }));
}

// A header has bytes; the server reads them as UTF-8.
const bytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

export const headers = () => ({
  "content-type": "application/json",
  ...(key() ? { authorization: `Bearer ${bytes(key())}` } : {}),
});

// Fetch something small; asks for a key where the server wants one. Fails with the server's message.
export async function api(path, options = {}) {
  const response = await fetch(base + path, { ...options, headers: headers() });
  if (response.status === 401 && await askKey(key() ? t("key_unknown") : "")) return api(path, options);
  if (!response.ok) throw new Error(failure(await response.text(), response.status).message);
  return response;
}

export function failure(text, status) {
  try {
    const found = JSON.parse(text);
    return { status, ...(found.error || found) };
  } catch {
    return { status, message: text.slice(0, 500) || t("status_only", { status }) };
  }
}

// Send a request and call `arrived` with the record after each read. The record is complete when this returns.
export async function send(record, signal, arrived) {
  const began = performance.now();
  try {
    const response = await fetch(base + record.path, { method: "POST", body: record.body, headers: headers(), signal });
    record.status = response.status;
    record.headers = [...response.headers];
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      record.frames.push([(performance.now() - began) / 1000, part.value]);
      arrived(record);
    }
    record.complete = true;
  } catch (error) {
    record.stopped = signal.aborted;
    if (!signal.aborted) record.error = t("connection", { problem: error.message });
  }
  record.seconds = (performance.now() - began) / 1000;
}

// Read events from frames as they come: blocks with data or a name, as the judge numbers them, and comments.
export class EventReader {
  constructor() {
    this.events = [];
    this.read = 0;
    this.rest = "";
    this.end = ""; // Of what was read: a blank line may begin in it.
    this.decoder = new TextDecoder();
  }

  take(frames) {
    for (; this.read < frames.length; this.read++) {
      const [time, data] = frames[this.read];
      const text = this.decoder.decode(data, { stream: true });
      const whole = /\n\r?\n/.test(this.end + text);
      this.rest += text;
      this.end = (this.end + text).slice(-2);
      if (!whole) continue; // A long event is looked through once, and not with each frame.
      const blocks = this.rest.replaceAll("\r\n", "\n").split("\n\n");
      this.rest = blocks.pop();
      for (const block of blocks) this.block(block, time);
    }
    return this.events;
  }

  block(block, time) {
    const fields = block.split("\n").map((line) => line.match(/^([a-z]*):? ?(.*)$/) || ["", "", ""]);
    const data = fields.filter((field) => field[1] === "data").map((field) => field[2]).join("\n");
    const name = fields.find((field) => field[1] === "event")?.[2];
    if (!data && name === undefined) return;
    let json = null;
    try { json = JSON.parse(data); } catch { /* [DONE], or not JSON: the judge says so. */ }
    this.events.push({ time, data, name, json });
  }
}
