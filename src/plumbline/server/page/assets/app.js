// Start the page: load what it needs, and connect its parts.

import { APIS, imported } from "./apis.js";
import { startComposer } from "./composer.js";
import { $, h, notice } from "./dom.js";
import { eventsPanel, stopReplay } from "./events.js";
import { show } from "./run.js";
import { readStatus, serverPanel } from "./server.js";
import { settingsPanel } from "./settings.js";
import { add, begin, emit, follow, on, path, remove, save, saveSettings, state } from "./state.js";
import { get, list, onAnnounced } from "./storage.js";
import { api, key } from "./stream.js";
import { startThread } from "./thread.js";
import { tokensPanel } from "./tokens.js";
import { chosen, LANGUAGES, t, translate, useLanguage } from "./texts.js";

const PANELS = {
  settings: [t("settings"), settingsPanel], events: [t("events"), eventsPanel], tokens: [t("tokens"), tokensPanel], server: [t("server"), serverPanel],
};
const narrow = matchMedia("(max-width: 1080px)");

function openPanel(name) {
  const view = $("view");
  if (view.dataset.tab !== name) stopReplay();
  view.dataset.tab = name;
  for (const tab of $("tabs").children) {
    const chosen = tab.dataset.tab === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) view.setAttribute("aria-labelledby", tab.id);
  }
  PANELS[name][1](view);
}

function side(which, open) {
  document.body.classList.toggle(`show-${which}`, open);
  document.body.classList.toggle(`hide-${which}`, !open);
  $(which === "panel" ? "panel-toggle" : "menu").setAttribute("aria-expanded", String(open));
  $("shade").hidden = !(narrow.matches && (document.body.matches(".show-panel, .show-sidebar")));
}

function tabs() {
  $("tabs").append(...Object.entries(PANELS).map(([name, [label]]) => h("button", {
    type: "button", role: "tab", id: `tab-${name}`, "data-tab": name, "aria-controls": "view", onclick: () => openPanel(name),
  }, label)));
  $("tabs").addEventListener("keydown", (event) => {
    const all = [...$("tabs").children];
    const next = all[all.indexOf(event.target) + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] || NaN)];
    if (next) {
      next.focus();
      openPanel(next.dataset.tab);
    }
  });
}

function apis() {
  $("apis").replaceChildren(...Object.entries(APIS).map(([name, { label }]) => h("label", {},
    h("input", { type: "radio", name: "api", value: name, checked: name === state.settings.api, onchange: () => {
      state.settings.api = name;
      saveSettings();
      emit("api");
    } }), h("span", {}, label))));
}

async function models() {
  const { data } = await (await api("/v1/models")).json();
  state.models = data;
  if (!data.some((model) => model.id === state.settings.model)) state.settings.model = data[0]?.id || "";
  $("model").replaceChildren(...data.map(({ id }) => h("option", { value: id, selected: id === state.settings.model }, id)));
}

function chooseModel() {
  state.settings.model = $("model").value;
  saveSettings();
  emit("models");
}

// The server may have been started again, with another model.
const reread = () => models().then(readStatus).catch(() => {});

function openConversation(conversation) {
  if (state.live) return notice(t("stop_first"));
  state.conversation = conversation;
  state.shown = null;
  if (conversation.api) state.settings.api = conversation.api;
  localStorage.setItem("conversation", conversation.id);
  apis();
  emit("thread");
  emit("shown");
  emit("conversations");
  if (narrow.matches) side("sidebar", false);
  const last = path(conversation).findLast((node) => node.record);
  return last && show(last);
}

async function conversations() {
  const found = await list();
  $("conversations").replaceChildren(...found.map(({ id, title }) => h("li", {},
    h("button", { type: "button", className: "entry", ariaCurrent: id === state.conversation.id ? "true" : null,
      onclick: async () => openConversation(await get("conversations", id)) }, title || t("untitled")),
    h("button", { type: "button", className: "icon", ariaLabel: t("delete", { name: title }), onclick: async () => {
      if (state.live) return notice(t("stop_first"));
      if (!confirm(t("delete_really", { name: title }))) return undefined;
      await remove(await get("conversations", id));
      if (id === state.conversation.id) startNew();
      return emit("conversations");
    } }, "×"))));
}

function startNew() {
  if (state.live) return notice(t("stop_first"));
  begin();
  openConversation(state.conversation);
  return $("prompt").focus();
}

async function openStored(event) {
  event.preventDefault();
  const name = encodeURIComponent($("stored-id").value.trim());
  try {
    const response = await (await api(`/v1/responses/${name}`)).json();
    const items = await (await api(`/v1/responses/${name}/input_items?order=asc&limit=100`)).json();
    begin();
    state.conversation.api = "responses";
    for (const node of imported(response, items.data)) add(state.conversation, state.conversation.leaf, { api: "responses", ...node });
    await save();
    openConversation(state.conversation);
    $("stored-id").value = "";
  } catch (error) {
    notice(t("stored_wrong", { problem: error.message }));
  }
}

function themes() {
  const label = () => ($("theme").textContent = t("theme", { name: t(`theme_${document.documentElement.dataset.theme}`) }));
  $("theme").addEventListener("click", () => {
    const root = document.documentElement;
    root.dataset.theme = { auto: "light", light: "dark", dark: "auto" }[root.dataset.theme];
    localStorage.setItem("theme", root.dataset.theme);
    label();
  });
  label();
}

function react() {
  const again = (...names) => names.includes($("view").dataset.tab) && openPanel($("view").dataset.tab);
  let waiting = false;
  on("problem", notice);
  on("conversations", conversations);
  on("stale", reread);
  onAnnounced(async (id) => {
    emit("conversations");
    if (await follow(id)) emit("thread");
  });
  on("settings", () => again("settings"));
  on("api", () => { state.conversation.api = state.settings.api; emit("models"); });
  on("models", () => again("settings"));
  on("models", () => { $("stored").hidden = !(state.settings.api === "responses" && state.status?.stores); });
  on("shown", () => again("events", "tokens"));
  on("judged", (live) => state.shown === live && again("events"));
  on("answer", () => {
    if (waiting) return;
    waiting = true;
    setTimeout(() => { waiting = false; again("events", "tokens"); }, 250);
  });
}

function languages() {
  $("language").append(h("option", { value: "" }, t("language_browser")),
    ...Object.entries(LANGUAGES).map(([name, label]) => h("option", { value: name, lang: name, selected: name === chosen() }, label)));
  $("language").addEventListener("change", () => useLanguage($("language").value));
}

async function start() {
  translate(document);
  languages();
  begin();
  react();
  themes();
  tabs();
  apis();
  startThread();
  startComposer();
  $("new").addEventListener("click", startNew);
  $("model").addEventListener("change", chooseModel);
  $("stored").addEventListener("submit", openStored);
  $("menu").addEventListener("click", () => side("sidebar", !document.body.matches(".show-sidebar")));
  $("panel-toggle").addEventListener("click", () => side("panel", $("panel-toggle").getAttribute("aria-expanded") !== "true"));
  $("shade").addEventListener("click", () => { side("panel", false); side("sidebar", false); });
  side("panel", !narrow.matches);
  await models();
  await readStatus();
  document.querySelector("a[href=docs]").hidden = key() !== ""; // A link sends no key, and the reference needs one.
  state.controls = await (await api("/page/controls.json")).json();
  openPanel("settings");
  const known = await get("conversations", localStorage.getItem("conversation") || "");
  if (known) await openConversation(known);
  else emit("thread");
  emit("conversations");
}

start().catch((error) => notice(t("start_wrong", { problem: error.message })));
