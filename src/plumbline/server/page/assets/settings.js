// The panel of settings: system prompt, format of answers, tools, and controls made from the contract.

import { APIS } from "./apis.js";
import { openCompare } from "./compare.js";
import { h } from "./dom.js";
import { FORMATS as EXAMPLES, TOOL } from "./examples.js";
import { presetFields } from "./presets.js";
import { requestBody } from "./run.js";
import { showRequest } from "./snippets.js";
import { path, saveSettings, state, usualOf } from "./state.js";
import { t } from "./texts.js";

const COMMON = ["max_completion_tokens", "max_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "min_p",
  "presence_penalty", "frequency_penalty", "seed"];
const FORMATS = {
  text: t("format_text"), json_object: t("format_object"), json_schema: t("format_schema"), regex: t("format_regex"), grammar: t("format_grammar"),
};
let count = 0;
function field(label, control, ...more) {
  control.id ||= `field-${++count}`;
  return h("div", { className: "field" }, h("label", { htmlFor: control.id }, label), control, ...more);
}

const select = (options, value, change) => h("select", { onchange: (event) => change(event.target.value) },
  ...Object.entries(options).map(([name, label]) => h("option", { value: name, selected: name === value }, label)));

// A text area whose text is checked while it is written.
function editor(label, value, check, change) {
  const problem = h("p", { className: "invalid", role: "status" });
  const text = h("textarea", { value, rows: 7, spellcheck: false, className: "mono" });
  const update = () => {
    try {
      if (text.value.trim()) check(text.value);
      problem.textContent = "";
    } catch (error) {
      problem.textContent = error.message;
    }
    text.setAttribute("aria-invalid", String(Boolean(problem.textContent)));
    change(text.value);
  };
  text.addEventListener("input", update);
  const made = field(label, text, problem);
  update();
  return made;
}

function set(name, value) {
  state.settings[name] = value;
  saveSettings();
}

function formatFields(again) {
  const { format } = state.settings;
  const parts = [field(t("format"), select(FORMATS, format.kind, (kind) => {
    set("format", { kind, value: EXAMPLES[kind] || "" });
    again();
  }))];
  if (EXAMPLES[format.kind]) {
    const check = { json_schema: JSON.parse, regex: (text) => new RegExp(text), grammar: () => {} }[format.kind];
    parts.push(editor(FORMATS[format.kind], format.value, check, (value) => set("format", { ...format, value })));
  }
  return parts;
}

function toolFields(again) {
  const { tools, toolChoice } = state.settings;
  const check = (text) => {
    const found = JSON.parse(text);
    const wrong = (Array.isArray(found) ? found : [found]).findIndex((tool) => typeof tool?.name !== "string");
    if (wrong >= 0) throw new Error(t("tool_unnamed", { number: wrong + 1 }));
  };
  return [
    editor(t("tools_list"), tools, check, (value) => set("tools", value)),
    h("div", { className: "line bottom" },
      h("button", { type: "button", className: "quiet", onclick: () => { set("tools", TOOL); again(); } }, t("tools_example")),
      field(t("calls"), select({ auto: t("calls_auto"), required: t("calls_required"), none: t("calls_none") }, toolChoice, (value) => set("toolChoice", value)))),
  ];
}

const range = ({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }) => {
  const [low, high] = [minimum ?? exclusiveMinimum, maximum ?? exclusiveMaximum]
    .map((bound) => (Math.abs(bound) < 2 ** 40 ? bound : undefined)); // Bounds of the machine say nothing to people.
  return low !== undefined && high !== undefined ? t("range", { low, high }) : low !== undefined ? t("range_from", { low }) : "";
};

function input(control, values) {
  const { name, kind, minimum, maximum } = control;
  const change = (value) => {
    if (value === "" || value === undefined) delete values[name];
    else values[name] = value;
    saveSettings();
  };
  if (control.enum || kind === "boolean") {
    const options = kind === "boolean" ? { "": t("default"), true: t("yes"), false: t("no") }
      : { "": t("default"), ...Object.fromEntries(control.enum.map((each) => [each, each])) };
    return select(options, String(values[name] ?? ""), (value) => change(value && kind === "boolean" ? value === "true" : value));
  }
  const number = kind !== "string";
  return h("input", {
    type: number ? "number" : "text", min: minimum, max: maximum, step: kind === "integer" ? 1 : "any",
    value: values[name] ?? "", placeholder: `${usualOf(control, state.settings.model) ?? t("default")}`,
    onchange: (event) => {
      if (event.target.reportValidity()) change(number && event.target.value !== "" ? Number(event.target.value) : event.target.value);
    },
  });
}

function parameter(control, values) {
  const about = h("p", { className: "muted about", id: `about-${control.name}` }, control.description || "");
  const element = input(control, values);
  element.setAttribute("aria-describedby", about.id);
  const made = field(control.name, element, about);
  made.classList.add("parameter");
  const more = [range(control), control.deprecated && t("deprecated")].filter(Boolean).join(", ");
  made.querySelector("label").append(h("span", { className: "muted" }, ` ${more}`));
  return made;
}

function parameterFields(again) {
  const { api, params } = state.settings;
  const controls = state.controls[api] || [];
  const common = COMMON.map((name) => controls.find((control) => control.name === name)).filter((control) => control && (!control.deprecated || control.name === "seed"));
  const others = controls.filter((control) => !common.includes(control)).map((control) => parameter(control, params[api]));
  const filter = h("input", { type: "search", placeholder: t("filter"), oninput: (event) =>
    others.forEach((made) => (made.hidden = !made.textContent.toLowerCase().includes(event.target.value.toLowerCase()))) });
  return [
    h("div", { className: "grid" }, ...common.map((control) => parameter(control, params[api]))),
    h("details", {}, h("summary", {}, t("parameters_other", { count: others.length })), field(t("filter_about"), filter), ...others),
    h("button", { type: "button", className: "quiet",
      onclick: () => { params[api] = {}; saveSettings(); again(); } }, t("defaults")),
  ];
}

export function settingsPanel(view) {
  const again = () => settingsPanel(view);
  const { api, system, logprobs } = state.settings;
  const talks = api !== "completions";
  const instructions = h("textarea", { value: system, rows: 3, oninput: (event) => set("system", event.target.value) });
  const box = h("input", { type: "checkbox", checked: logprobs, onchange: (event) => set("logprobs", event.target.checked) });
  view.replaceChildren(...[
    ...presetFields(again),
    talks && field(t("system"), instructions),
    h("h2", {}, t("sampling")), ...parameterFields(again),
    h("h2", {}, t("structure")), ...formatFields(again),
    ...(talks ? [h("h2", {}, t("tools")), ...toolFields(again)] : []),
    APIS[api].logprobs && h("label", { className: "check" }, box, t("probabilities")),
    h("button", { type: "button", className: "quiet", onclick: openCompare }, t("compare_two")),
    h("button", { type: "button", className: "quiet", onclick: () => showRequest(requestBody(path(state.conversation))) },
      t("code_next")),
  ].filter(Boolean));
}
