// Write messages: Enter sends, Shift+Enter breaks the line, Escape stops; pictures by drag, paste or file.

import { $, h } from "./dom.js";
import { run, stop } from "./run.js";
import { add, emit, on, readsPictures, state } from "./state.js";
import { followAgain } from "./thread.js";
import { t } from "./texts.js";

const MOST_BYTES = 8 * 2 ** 20; // Of one picture; the server takes bodies of 10 MiB.
let images = [];

function grow() {
  const prompt = $("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, 240)}px`;
}

function showImages() {
  $("attachments").replaceChildren(...images.map((url, place) => h("li", {}, h("img", { src: url, alt: t("picture", { number: place + 1 }) }),
    h("button", { type: "button", className: "icon", ariaLabel: t("picture_remove", { number: place + 1 }), onclick: () => {
      images.splice(place, 1);
      showImages();
    } }, "×"))));
}

async function attach(files) {
  const pictures = [...files].filter((file) => file.type.startsWith("image/"));
  if (!pictures.length) return;
  if (!readsPictures()) return emit("problem", t("picture_unread"));
  for (const file of pictures) {
    if (file.size > MOST_BYTES) {
      emit("problem", t("picture_large", { name: file.name }));
      continue;
    }
    images.push(await new Promise((resolve) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.readAsDataURL(file);
    }));
  }
  showImages();
}

function submit(event) {
  event.preventDefault();
  if (state.live) return stop();
  const prompt = $("prompt");
  if (!prompt.value.trim() && !images.length) return undefined;
  const node = add(state.conversation, state.conversation.leaf, { role: "user", text: prompt.value, images });
  images = [];
  prompt.value = "";
  showImages();
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
  $("file").addEventListener("change", () => attach($("file").files));
  prompt.addEventListener("paste", (event) => attach(event.clipboardData.files));
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
  on("models", () => ($("attach").hidden = !readsPictures()));
}
