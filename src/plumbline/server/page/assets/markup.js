// Turn the Markdown that models write into elements. Its HTML stays text, and pictures become links.
//
// markdown-it writes HTML of its own only, and DOMPurify keeps no more than the elements and attributes listed here.

import MarkdownIt from "./vendor/markdown-it.esm.min.mjs";
import "./vendor/purify.min.js";
import { codeBlock } from "./code.js";
import { h } from "./dom.js";
import { drawMath, mathRules } from "./math.js";
import { noteRules } from "./notes.js";

const KEPT = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "div", "em", "h3", "h4", "h5", "h6", "hr", "kbd", "li", "ol", "p", "pre", "s", "span",
    "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["class", "dir", "href", "id", "rel", "scope", "start", "target", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:|#note-)/i,
  ADD_URI_SAFE_ATTR: ["dir", "rel", "scope", "start", "target"],
  ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true,
};
const TASK = /^\[([ xX])\] /;
const INLINE_TAG = /^<(?:br ?\/?|\/?(?:kbd|su[bp]))>/i; // The only tags that are read; models write them in tables.

const markdown = new MarkdownIt({ linkify: true, breaks: true });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
mathRules(markdown);
noteRules(markdown);

function inlineTag(state, silent) {
  const match = state.src[state.pos] === "<" && INLINE_TAG.exec(state.src.slice(state.pos, state.pos + 8));
  if (!match) return false;
  if (!silent) state.push("html_inline", "", 0).content = match[0];
  state.pos += match[0].length;
  return true;
}
markdown.inline.ruler.before("html_inline", "inline_tag", inlineTag);

// Task lists, the direction of blocks, alignment without styles, and headings below those of the page.
markdown.core.ruler.push("page", ({ tokens, Token }) => {
  tokens.forEach((token, place) => {
    if (token.level === 0 && token.nesting === 1) token.attrSet("dir", "auto");
    if (/^t[hd]_open$/.test(token.type)) {
      const side = /text-align:(\w+)/.exec(token.attrGet("style") || "")?.[1];
      token.attrs = [...(side ? [["class", `to-${side}`]] : []), ...(token.tag === "th" ? [["scope", "col"]] : [])];
    }
    if (/^heading_/.test(token.type)) token.tag = `h${Math.min(6, Number(token.markup[0] === "#" ? token.markup.length : token.markup === "=" ? 1 : 2) + 2)}`;
    const task = token.type === "inline" && tokens[place - 2]?.type === "list_item_open" && TASK.exec(token.content);
    if (task && token.children[0]?.type === "text") {
      tokens[place - 2].attrJoin("class", "task");
      token.children[0].content = token.children[0].content.slice(4);
      const mark = new Token("html_inline", "", 0);
      mark.content = `<span class="box">${task[1] === " " ? "☐" : "☑"}</span> `;
      token.children.unshift(mark);
    }
  });
});

const { rules } = markdown.renderer;
rules.link_open = (tokens, place, options, _, self) => {
  tokens[place].attrSet("target", "_blank");
  tokens[place].attrSet("rel", "noopener noreferrer");
  return self.renderToken(tokens, place, options);
};
const escape = markdown.utils.escapeHtml;
rules.image = (tokens, place) => {
  const { content, attrs } = tokens[place];
  const url = Object.fromEntries(attrs).src;
  return `<a href="${escape(url)}" target="_blank" rel="noopener noreferrer">${escape(content || url)}</a>`;
};

export const parse = (text, env) => markdown.parse(text, env);

// Return elements of tokens. `kept` has those that were drawn before, by their text: drawing them again costs more.
export function elements(tokens, env, kept = new Map()) {
  const found = globalThis.DOMPurify.sanitize(markdown.renderer.render(tokens, markdown.options, env), KEPT);
  for (const table of found.querySelectorAll("table")) {
    const scroller = h("div", { className: "table", tabIndex: 0, role: "group" });
    table.replaceWith(scroller);
    scroller.append(table);
  }
  for (const code of found.querySelectorAll("pre > code")) {
    const language = /language-(\S+)/.exec(code.className)?.[1] || "";
    code.parentNode.replaceWith(kept.get(`${language}\n${code.textContent}`) || codeBlock(code.textContent.replace(/\n$/, ""), language));
  }
  for (const math of found.querySelectorAll(".math")) {
    const drawn = kept.get(math.className + math.textContent);
    if (drawn) math.replaceWith(drawn);
    else drawMath(math);
  }
  return found;
}

// The parts of elements that can be used again, by their text.
export function reusable(element) {
  const found = new Map();
  for (const each of element.querySelectorAll(".math.drawn")) found.set(each.className.replace(/ wrong| drawn/g, "") + each.title, each);
  for (const each of element.querySelectorAll(".code")) found.set(each.dataset.source, each);
  return found;
}

// A sentence of the contract: code, emphasis and links, without blocks.
export const inline = (text) => [...globalThis.DOMPurify.sanitize(markdown.renderInline(text), KEPT).childNodes];
