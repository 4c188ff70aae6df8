// Show a text that grows. It is kept in pieces, so that only the last one is laid out again.

import { h } from "./dom.js";

const SIZE = 4000;

export class Chunks {
  constructor(element) {
    this.element = element;
    this.text = "";
    this.begin = 0; // Of the last piece.
  }

  update(text) {
    if (!text.startsWith(this.text)) {
      this.element.replaceChildren();
      this.begin = 0;
    }
    this.text = text;
    let last = this.element.lastChild;
    for (let end; this.begin < text.length || !last; this.begin = end) {
      if (!last) this.element.append((last = h("span", { className: "chunk" })));
      end = text.length;
      if (end - this.begin > SIZE) {
        const cut = text.indexOf("\n", this.begin + SIZE) + 1;
        if (cut) end = cut;
      }
      last.textContent = text.slice(this.begin, end);
      if (end === text.length) break;
      last = null;
    }
  }
}
