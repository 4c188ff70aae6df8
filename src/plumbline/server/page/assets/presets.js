// Presets: a system prompt and the sampling parameters under a name, kept in this browser.

import { h } from "./dom.js";
import { saveSettings, state } from "./state.js";
import { t } from "./texts.js";

export function presets() {
  try {
    return JSON.parse(localStorage.getItem("presets") || "{}");
  } catch {
    return {};
  }
}

function write(found) {
  localStorage.setItem("presets", JSON.stringify(found));
}

// Fields that choose, save and delete a preset; `again` draws the settings anew.
export function presetFields(again) {
  const found = presets();
  const name = h("input", { placeholder: t("preset_name"), ariaLabel: t("preset_name"), maxLength: 60 });
  const choice = h("select", { id: "preset", onchange: () => {
    const { system, params } = structuredClone(presets()[choice.value] || {});
    if (params) Object.assign(state.settings, { system, params: { ...state.settings.params, ...params } });
    saveSettings();
    again();
  } }, h("option", { value: "" }, t("preset_none")), ...Object.keys(found).map((each) => h("option", { value: each }, each)));
  const keep = h("button", { type: "button", className: "quiet", onclick: () => {
    const { system, params } = state.settings;
    if (!name.value.trim()) return name.focus();
    write({ ...presets(), [name.value.trim()]: structuredClone({ system, params }) });
    return again();
  } }, t("preset_save"));
  const drop = (each) => h("button", { type: "button", className: "quiet", ariaLabel: t("preset_delete", { name: each }), onclick: () => {
    const { [each]: _, ...rest } = presets();
    write(rest);
    again();
  } }, `${each} ×`);
  return [
    h("div", { className: "field" }, h("label", { htmlFor: "preset" }, t("preset")), choice),
    h("div", { className: "line presets" }, name, keep, ...Object.keys(found).map(drop)),
  ];
}
