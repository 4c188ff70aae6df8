// Code with its language, colours and a button that copies it; a diagram has one that draws it.

import hljs from "./vendor/highlight.min.js";
import { Chunks } from "./chunks.js";
import { drawDiagram } from "./diagram.js";
import { copy, h } from "./dom.js";
import { t } from "./texts.js";

const LONGEST = 30_000; // Characters; longer code has no colours.

function colours(text, language) {
  if (text.length > LONGEST || !hljs.getLanguage(language)) return null;
  const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
  return globalThis.DOMPurify.sanitize(value, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true });
}

// A block of code that grows until it is finished.
export class CodeView {
  constructor(language) {
    this.language = language;
    this.code = h("code", { dir: "ltr" });
    this.chunks = new Chunks(this.code);
    this.head = h("div", { className: "code-head" }, h("span", {}, language || t("code_plain")),
      h("button", { type: "button", className: "quiet", onclick: () => copy(this.chunks.text, t("code")) }, t("copy")));
    this.element = h("div", { className: "code" }, this.head, h("pre", { tabIndex: 0, dir: "ltr" }, this.code));
  }

  update(text) {
    this.chunks.update(text);
  }

  finish() {
    const { text } = this.chunks;
    this.element.dataset.source = `${this.language}\n${text}\n`;
    const coloured = colours(text, this.language.toLowerCase());
    if (coloured) this.code.replaceChildren(coloured);
    if (this.language === "mermaid") {
      const button = h("button", { type: "button", className: "quiet", onclick: () => drawDiagram(text, this.element, button) }, t("diagram_show"));
      this.head.lastChild.before(button);
    }
  }
}

export function codeBlock(text, language) {
  const view = new CodeView(language);
  view.update(text);
  view.finish();
  return view.element;
}
