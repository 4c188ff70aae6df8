// An answer while it is written and afterwards: thinking, text, tool calls, problems. What has not changed stays as it is.

import { callCards } from "./calls.js";
import { Chunks } from "./chunks.js";
import { CodeView } from "./code.js";
import { arrange, h, seconds } from "./dom.js";
import { Prose } from "./prose.js";
import { state } from "./state.js";
import { t } from "./texts.js";
import { jsonTree } from "./tree.js";

const parsed = (text) => { try { return JSON.parse(text); } catch { return undefined; } };

// A server may send the thinking, a summary of it, or both, which can be the same.
const thoughts = (answer) => answer.thinking || answer.summary || "";

class Thinking {
  constructor(node) {
    this.node = node;
    this.name = h("span");
    this.size = h("span", { className: "muted" });
    const text = h("div", { className: "plain", dir: "auto" });
    this.chunks = new Chunks(text);
    this.element = h("details", { className: "thinking", open: node.open, ontoggle: ({ target }) => (node.open = target.open) },
      h("summary", {}, this.name, " ", this.size), text);
  }

  update(answer, writing) {
    const { thought } = this.node;
    const open = writing && !answer.text && !answer.calls.length;
    this.name.textContent = open ? t("thinking_now") : thought ? t("thinking_time", { time: seconds(thought.to - thought.from) }) : t("thinking");
    this.size.textContent = t("thinking_size", { count: thoughts(answer).length });
    this.chunks.update(thoughts(answer));
  }
}

// The text of an answer: plain, Markdown, or a tree where the whole text is JSON.
class Text {
  constructor(node) {
    this.node = node;
    this.kind = "";
  }

  become(kind, make) {
    if (this.kind !== kind) [this.kind, this.view] = [kind, make()];
    return this.view;
  }

  get element() {
    return this.view.element;
  }

  update(text, writing) {
    if (this.node.api === "completions") {
      const made = () => {
        const inner = h("div", { className: "plain", dir: "auto" });
        return { chunks: new Chunks(inner), element: h("div", { className: "text" }, inner) };
      };
      return this.become("plain", made).chunks.update(text);
    }
    const json = /^\s*[{[]/.test(text) && !writing ? parsed(text) : undefined;
    if (typeof json === "object" && json) {
      return this.become(`tree ${text}`, () => ({ element: h("div", { className: "text" }, jsonTree(json, text, this.node.schema)) }));
    }
    if (writing && /^\s*\{/.test(text)) {
      const made = () => {
        const view = new CodeView("json");
        return { view, element: h("div", { className: "text" }, view.element) };
      };
      return this.become("json", made).view.update(text);
    }
    return this.become("prose", () => new Prose()).update(text, writing);
  }
}

function problem(error) {
  const about = [error.param && t("problem_field", { name: error.param }), error.code, error.status && t("problem_status", { status: error.status })];
  return h("div", { className: "problem", role: "alert" }, h("p", { dir: "auto" }, error.message || t("problem_unnamed")),
    h("p", { className: "muted" }, about.filter(Boolean).join(" · ")));
}

class AnswerView {
  constructor(node) {
    this.node = node;
    this.element = h("div", { className: "body" });
    this.article = h("article", { className: "message assistant", id: `m${node.id}`, ariaLabel: t("answer") });
    this.heading = h("h2", { className: "hidden" }, t("answer")); // Screen readers go from one to the next.
    this.parts = {};
    this.keys = {};
  }

  // Keep a part while its key is the same.
  part(name, key, make) {
    if (this.keys[name] !== key || !this.parts[name]) [this.keys[name], this.parts[name]] = [key, make()];
    return this.parts[name];
  }

  draw(answer = this.node.answer) {
    const { node } = this;
    const writing = state.live?.node === node;
    const found = [];
    if (thoughts(answer)) {
      const thinking = this.part("thinking", "", () => new Thinking(node));
      thinking.update(answer, writing);
      found.push(thinking.element);
    }
    if (answer.text) {
      const text = this.part("text", "", () => new Text(node));
      text.update(answer.text, writing);
      found.push(text.element);
    }
    if (answer.calls.length) {
      const last = state.conversation.leaf === node.id && !writing;
      found.push(...this.part("calls", `${last} ${JSON.stringify(answer.calls)}`, () => callCards(node, answer, last)));
    }
    if (answer.error) found.push(this.part("error", answer.error, () => problem(answer.error)));
    if (writing) {
      const empty = !found.length;
      found.push(this.part("writing", empty, () => h("p", { className: "writing", ariaLabel: t("writing") }, empty ? t("waiting") : "")));
    } else if (!found.length) found.push(h("p", { className: "muted" }, t("empty")));
    arrange(this.element, found);
  }
}

const views = new WeakMap();
export function answerView(node) {
  if (!views.has(node)) views.set(node, new AnswerView(node));
  return views.get(node);
}
