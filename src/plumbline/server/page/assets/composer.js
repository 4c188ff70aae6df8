// Write messages: Enter sends, Shift+Enter breaks the line, Escape stops; pictures and texts by drag, paste or file.

import { $, h } from "./dom.js";
import { run, stop } from "./run.js";
import { add, emit, on, readsPictures, state } from "./state.js";
import { followAgain } from "./thread.js";
import { t } from "./texts.js";

const MOST_BYTES = 8 * 2 ** 20; // Of one file; the server takes bodies of 10 MiB.
const LONG = 10_000; // Characters; a longer text that is pasted is a file, because the field gets slow with it.
let images = [];
let texts = [];

function grow() {
  const prompt = $("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, 240)}px`;
}

function showAttachments() {
  const item = (list, place, shown, label) => h("li", {}, shown, h("button", { type: "button", className: "icon", ariaLabel: label, onclick: () => {
    list.splice(place, 1);
    showAttachments();
  } }, "×"));
  $("attachments").replaceChildren(
    ...images.map((url, place) => item(images, place, h("img", { src: url, alt: t("picture", { number: place + 1 }) }), t("picture_remove", { number: place + 1 }))),
    ...texts.map(({ name }, place) => item(texts, place, h("code", { dir: "auto" }, name), t("file_remove", { name }))));
}

const dataUrl = (file) => new Promise((resolve) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.readAsDataURL(file);
});

// The text of a file; null if it has bytes that no text has.
async function textOf(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

// A file as a part of the message, in a fence that its own text cannot end.
function quoted({ name, text }) {
  const fence = "`".repeat(1 + Math.max(2, ...[...text.matchAll(/`+/g)].map(([ticks]) => ticks.length)));
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

async function attach(files) {
  for (const file of files) {
    const picture = file.type.startsWith("image/");
    if (picture && !readsPictures()) emit("problem", t("picture_unread"));
    else if (file.size > MOST_BYTES) emit("problem", t("file_large", { name: file.name }));
    else if (picture) images.push(await dataUrl(file));
    else {
      const text = await textOf(file);
      if (text === null) emit("problem", t("file_unread", { name: file.name }));
      else texts.push({ name: file.name, text });
    }
  }
  showAttachments();
}

function paste(event) {
  const { clipboardData: data } = event;
  const text = data.getData("text/plain");
  if (text.length > LONG) {
    event.preventDefault();
    return attach([new File([text], `${t("pasted", { number: texts.length + 1 })}.txt`)]);
  }
  // Cells of a spreadsheet come with a picture of them.
  return attach(text && data.types.includes("text/html") ? [] : data.files);
}

function submit(event) {
  event.preventDefault();
  if (state.live) return stop();
  const prompt = $("prompt");
  if (!prompt.value.trim() && !images.length && !texts.length) return undefined;
  const text = [prompt.value, ...texts.map(quoted)].filter(Boolean).join("\n\n");
  const node = add(state.conversation, state.conversation.leaf, { role: "user", text, images });
  images = [];
  texts = [];
  prompt.value = "";
  showAttachments();
  grow();
  followAgain();
  return run(node);
}

export function startComposer() {
  const prompt = $("prompt");
  $("composer").addEventListener("submit", submit);
  prompt.addEventListener("input", grow);
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!state.live) $("composer").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.live && !document.querySelector("dialog[open]")) stop();
  });
  $("attach").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => attach($("file").files).then(() => ($("file").value = "")));
  prompt.addEventListener("paste", paste);
  for (const name of ["dragover", "drop"]) {
    document.addEventListener(name, (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      document.body.classList.toggle("dropping", name === "dragover");
      if (name === "drop") attach(event.dataTransfer.files);
    });
  }
  document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
  on("thread", () => {
    $("send").textContent = state.live ? t("stop") : t("send");
    $("hint").textContent = state.live ? t("hint_stop") : t("hint_send");
  });
}
