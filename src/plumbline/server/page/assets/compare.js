// Ask two models, or one with two settings, the same, and show both answers with the tokens that differ.

import { APIS, emptyAnswer } from "./apis.js";
import { Chunks } from "./chunks.js";
import { common, pieces } from "./diff.js";
import { $, h, seconds } from "./dom.js";
import { presets } from "./presets.js";
import { Prose } from "./prose.js";
import { keep, newRecord, requestBody } from "./run.js";
import { add, emit, path, save, state, usualOf } from "./state.js";
import { EventReader, failure, send } from "./stream.js";
import { t } from "./texts.js";

const NUMBERS = ["temperature", "top_p", "top_k", "seed", "max_completion_tokens", "max_tokens", "max_output_tokens"];

const field = (label, control) => h("label", { className: "field" }, h("span", {}, label), control);

class Side {
  constructor(name) {
    this.settings = structuredClone(state.settings);
    this.settings.logprobs = APIS[this.settings.api].logprobs;
    this.form = h("div", { className: "grid" });
    this.text = h("div", { className: "answer", tabIndex: 0, role: "region", ariaLabel: t("compare_answer", { name }) });
    this.facts = h("p", { className: "muted facts" });
    this.keep = h("button", { type: "button", className: "quiet", disabled: true }, t("compare_keep"));
    this.element = h("section", { className: "side", ariaLabel: name }, h("h3", {}, name), this.form, this.text,
      h("div", { className: "line" }, this.facts, this.keep));
    this.fields();
  }

  fields() {
    const { settings } = this;
    const { api } = settings;
    const values = (settings.params[api] ??= {});
    const known = (state.controls[api] || []).filter(({ name }) => NUMBERS.includes(name));
    const model = h("select", { onchange: () => { settings.model = model.value; this.fields(); } },
      ...state.models.map(({ id }) => h("option", { value: id, selected: id === settings.model }, id)));
    const saved = Object.entries(presets());
    const preset = h("select", { onchange: () => {
      Object.assign(settings, structuredClone(presets()[preset.value] || {}));
      this.fields();
    } }, h("option", { value: "" }, t("preset_none")), ...saved.map(([name]) => h("option", { value: name }, name)));
    const system = h("textarea", { value: settings.system, rows: 1, dir: "auto", oninput: () => (settings.system = system.value) });
    this.form.replaceChildren(...[field(t("model"), model), saved.length > 0 && field(t("preset"), preset),
      api !== "completions" && field(t("system"), system),
      ...known.map(({ name, minimum, maximum, kind, default: usual }) => field(name, h("input", { type: "number", min: minimum, max: maximum,
        step: kind === "integer" ? 1 : "any", value: values[name] ?? "", placeholder: usualOf({ name, default: usual }, settings.model) ?? t("default"), onchange: ({ target }) => {
          if (target.value === "") delete values[name];
          else values[name] = Number(target.value);
        } })))].filter(Boolean));
  }

  async ask(nodes, signal) {
    const { api } = this.settings;
    this.answer = emptyAnswer();
    this.record = newRecord(api, requestBody(nodes, this.settings));
    this.keep.disabled = true;
    const plain = h("div", { className: "plain", dir: "auto" });
    const chunks = new Chunks(plain);
    this.text.replaceChildren(plain);
    const reader = new EventReader();
    let folded = 0;
    await send(this.record, signal, () => {
      const events = reader.take(this.record.frames);
      for (; folded < events.length; folded++) APIS[api].fold(this.answer, events[folded]);
      chunks.update(this.answer.text);
    });
    if (this.record.status >= 400) this.answer.error = failure(await new Blob(this.record.frames.map((each) => each[1])).text(), this.record.status);
    const error = this.answer.error?.message || this.record.error;
    const used = this.answer.usage || {};
    this.facts.textContent = error || [t("facts_tokens", { count: used.completion_tokens ?? used.output_tokens ?? "–" }), seconds(this.record.seconds)].join(" · ");
    this.keep.disabled = Boolean(error);
  }

  // Show the answer with its differing tokens marked, or as Markdown.
  show(tokens, same, marked) {
    if (!marked) {
      const prose = new Prose();
      prose.update(this.answer.text, false);
      return this.text.replaceChildren(prose.element);
    }
    return this.text.replaceChildren(h("div", { className: "plain", dir: "auto" },
      ...tokens.map((text, place) => (same[place] ? text : h("mark", {}, text)))));
  }
}

export function openCompare() {
  const asked = path(state.conversation).findLast((node) => node.role === "user");
  const prompt = h("textarea", { value: $("prompt").value || asked?.text || "", rows: 2, dir: "auto", required: true });
  const sides = ["A", "B"].map((name) => new Side(name));
  const result = h("p", { className: "muted", role: "status" });
  const marks = h("input", { type: "checkbox", checked: true, onchange: () => shown() });
  const start = h("button", { className: "primary" }, t("compare_start"));
  let running = null;
  let nodes = [];

  function shown() {
    if (sides.some(({ answer }) => !answer)) return;
    const tokens = sides.map(({ answer }) => pieces(answer));
    const same = common(...tokens);
    sides.forEach((side, place) => side.show(tokens[place], same[place], marks.checked));
    const [one, other] = same.map((each) => each.filter((kept) => !kept).length);
    result.textContent = one + other ? t("compare_differ", { one, other }) : t("compare_same");
  }

  async function ask(event) {
    event.preventDefault();
    if (running) return running.abort();
    running = new AbortController();
    start.textContent = t("stop");
    result.textContent = "";
    const before = asked ? path(state.conversation, asked.parent) : path(state.conversation);
    nodes = [...before, { role: "user", text: prompt.value, images: asked?.images || [] }];
    try {
      await Promise.all(sides.map((side) => side.ask(nodes, running.signal)));
      shown();
    } catch (error) {
      result.textContent = t("request_wrong", { problem: error.message });
    }
    running = null;
    start.textContent = t("compare_start");
    return undefined;
  }

  for (const side of sides) {
    side.keep.addEventListener("click", async () => {
      const user = asked?.text === nodes.at(-1).text ? asked : add(state.conversation, asked?.parent ?? null, nodes.at(-1));
      const { api, model } = side.settings;
      add(state.conversation, user.id, { role: "assistant", api, model, answer: side.answer, record: side.record.id, seconds: side.record.seconds,
        firstToken: side.record.frames[0]?.[0] });
      await Promise.all([keep(side.record), save()]);
      $("compare").close();
      emit("thread");
      emit("conversations");
    });
  }
  $("compare").replaceChildren(h("form", { onsubmit: ask },
    h("div", { className: "line" }, h("h2", { id: "compare-title" }, t("compare_title")),
      h("button", { type: "button", className: "quiet", onclick: () => $("compare").close() }, t("close"))),
    field(t("message"), prompt),
    h("div", { className: "actions" }, h("label", { className: "check" }, marks, t("compare_marks")), result, start),
    h("div", { className: "sides" }, ...sides.map(({ element }) => element))));
  $("compare").addEventListener("close", () => running?.abort(), { once: true });
  $("compare").showModal();
}
