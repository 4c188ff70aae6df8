// An answer as Markdown that grows. Blocks that have ended are drawn once; only the last one is drawn again.
//
// The text is read in windows, so that no step costs more than a window, whatever a model writes: of a list, a table or a
// paragraph that is longer than one, what fits is drawn and the rest goes on as another one.

import { CodeView } from "./code.js";
import { h, id } from "./dom.js";
import { elements, parse, reusable } from "./markup.js";

const SMALL = 1200; // Characters that are read at a time,
const WINDOW = 4000; // or so many, if a block is longer.
const SLICE = 10; // Milliseconds of drawing at a time.
const LONG = 10_000; // Characters; behind them only what is in sight is laid out.
const GROUP = 1500; // Characters that come into sight together: KaTeX makes forty elements of a formula of twenty.
const ITEM = /\n(?=(?:[-*+]|\d{1,9}[.)])\s)/g;

// Where a block that is longer than its window is cut.
function cutIn(window, type) {
  const items = /list/.test(type) ? [...window.matchAll(ITEM)] : [];
  const place = items.length ? items.at(-1).index : window.lastIndexOf("\n", window.length - 2);
  if (place > 0) return place + 1;
  return window.endsWith("\n") ? window.length : window.lastIndexOf(" ") + 1 || window.length;
}

const lineAt = (text, line) => {
  let place = 0;
  for (let number = 0; number < line; number++) place = text.indexOf("\n", place) + 1 || text.length;
  return place;
};

export class Prose {
  constructor() {
    this.element = h("div", { className: "text" });
    this.reset();
  }

  reset() {
    clearTimeout(this.timer);
    this.element.replaceChildren();
    Object.assign(this, { text: "", done: 0, head: "", code: null, tail: null, group: null, size: 0, pieces: [], env: { name: id(), notes: new Set(), references: {} } });
  }

  // Show a text; `writing` while it grows.
  update(text, writing) {
    text = text.replaceAll("\r", "");
    const ended = this.writing === false && text.length > this.text.length; // A replay goes on from an answer that had ended.
    if (ended || !text.startsWith(this.text)) this.reset();
    this.text = text;
    this.writing = writing;
    this.work();
  }

  work() {
    clearTimeout(this.timer);
    const end = performance.now() + SLICE;
    while (this.done < this.text.length && this.step()) {
      if (performance.now() > end) {
        this.timer = setTimeout(() => this.work());
        return;
      }
    }
  }

  // Parse the next characters.
  read(size) {
    const window = this.text.slice(this.done, this.done + size);
    const source = this.head + window;
    const tokens = parse(source, this.env);
    const starts = tokens.flatMap((token, place) => (token.level === 0 && token.nesting >= 0 ? [place] : []));
    return { window, source, tokens, starts, last: this.done + window.length === this.text.length };
  }

  // Draw the next blocks; false if only the one that is being written remains.
  step() {
    if (this.code) return this.moreCode();
    const known = this.known();
    let read = this.read(SMALL);
    if (!read.last && read.starts.length < 2) read = this.read(WINDOW);
    this.defined(known);
    const { source, tokens, starts, last } = read;
    let { window } = read;
    if (last && !this.writing) {
      this.commit(tokens, window.length);
      return true;
    }
    const final = starts.at(-1);
    const before = starts.length > 1 ? lineAt(source, tokens[final].map[0]) - this.head.length : 0;
    if (before > 0) {
      this.commit(tokens.slice(0, final), before);
      return true;
    }
    if (last) {
      this.drawTail(tokens);
      return false;
    }
    const [token] = tokens;
    if (token?.type === "fence" && /^[`~]/.test(window)) return this.openCode(token);
    window = window.slice(0, cutIn(window, token?.type || ""));
    const { head } = this;
    const table = token?.type === "table_open" ? this.head || window.split("\n", 2).join("\n") + "\n" : "";
    const cut = parse(head + window, this.env);
    this.commit(cut, window.length);
    // The rows that follow have the same heads.
    if (table && /^ *\|/.test(this.text.slice(this.done, this.done + 20))) this.head = table;
    return true;
  }

  commit(tokens, length) {
    const source = this.head + this.text.slice(this.done, this.done + length);
    const piece = this.tail || h("div", { className: "piece" });
    piece.replaceChildren(elements(tokens, this.env, reusable(piece)));
    this.place(piece, length);
    this.pieces.push({ piece, source });
    Object.assign(this, { tail: null, head: "", done: this.done + length });
  }

  // Put an element at the end. A browser leaves whole groups out of its layout while they are out of sight.
  place(element, length) {
    if (!element.parentNode) {
      if (!this.group || this.size > GROUP) this.openGroup();
      this.group.append(element);
    }
    this.size += length;
    return element;
  }

  // A group is set apart when it has ended. Setting all apart at once would lay the whole text out again in one frame.
  openGroup() {
    if (this.done > LONG) this.group?.classList.add("apart");
    this.group = this.element.appendChild(h("div", { className: "group" }));
    this.size = 0;
  }

  drawTail(tokens) {
    this.tail ??= this.place(h("div", { className: "piece" }), 0);
    this.tail.replaceChildren(elements(tokens, this.env, reusable(this.tail)));
  }

  openCode({ info, markup }) {
    const view = new CodeView(info.trim().split(/\s/)[0]);
    const from = this.text.indexOf("\n", this.done) + 1;
    this.tail?.remove();
    this.tail = null;
    this.place(view.element, WINDOW);
    this.code = { view, from, seen: from, close: new RegExp(`^ {0,3}${markup[0]}{${markup.length},}[ \\t]*$`) };
    return true;
  }

  // Go on with code that is longer than a window.
  moreCode() {
    const { view, from, close } = this.code;
    for (;;) {
      const end = this.text.indexOf("\n", this.code.seen);
      if (end < 0 && this.writing) {
        view.update(this.text.slice(from));
        return false;
      }
      const line = this.text.slice(this.code.seen, end < 0 ? undefined : end);
      const closed = close.test(line);
      if (closed || end < 0) {
        view.update(this.text.slice(from, closed ? Math.max(from, this.code.seen - 1) : undefined));
        view.finish();
        Object.assign(this, { code: null, done: end < 0 ? this.text.length : end + 1 });
        return true;
      }
      this.code.seen = end + 1;
    }
  }

  known() {
    return new Set([...this.env.notes, ...Object.keys(this.env.references)]);
  }

  // Draw again what names a footnote or a link that has been defined only now.
  defined(known) {
    const added = [...this.known()].filter((each) => !known.has(each));
    if (!added.length) return;
    for (const { piece, source } of this.pieces) {
      const labels = source.toUpperCase();
      if (!added.some((each) => labels.includes(`[${each}]`.toUpperCase()) || labels.includes(`[^${each}]`.toUpperCase()))) continue;
      piece.replaceChildren(elements(parse(source, this.env), this.env, reusable(piece)));
    }
  }
}
