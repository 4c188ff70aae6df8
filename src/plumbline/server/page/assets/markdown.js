// Render the Markdown that models write as elements: code, headings, lists, quotes, tables, emphasis and links.
//
// Everything else stays text. No HTML is parsed and no picture is loaded, whatever the text says.

import { copy, h } from "./dom.js";

// A label has no "[", so that a row of them is not read to its end from each one.
const INLINE = /`([^`]+)`|\*\*([^*]+(?:\*[^*]+)*?)\*\*|\*([^*\s](?:[^*]*[^*\s])?)\*|\[([^\][]*)\]\((https?:\/\/[^\s)]+)\)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const DEEPEST = 8; // Of quotes and lists within each other; models can write thousands.
const ROW = /^\s*\|(.+)\|\s*$/;

export function inline(text) {
  const parts = [];
  for (let match = INLINE.exec(text); match; match = INLINE.exec(text)) {
    if (match.index) parts.push(text.slice(0, match.index));
    const [whole, code, bold, italic, label, url] = match;
    if (code) parts.push(h("code", {}, code));
    else if (bold) parts.push(h("strong", {}, ...inline(bold)));
    else if (italic) parts.push(h("em", {}, ...inline(italic)));
    else parts.push(h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, label || url));
    text = text.slice(match.index + whole.length);
  }
  if (text) parts.push(text);
  return parts;
}

export function codeBlock(code, language) {
  return h("div", { className: "code" },
    h("div", { className: "code-head" }, h("span", {}, language || "text"),
      h("button", { type: "button", className: "quiet", onclick: () => copy(code, "Code") }, "Copy")),
    h("pre", { tabIndex: 0 }, h("code", {}, code)));
}

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const element = h(/\d/.test(mark) ? "ol" : "ul", /\d/.test(mark) ? { start: parseInt(mark, 10) } : {});
  let item = [];
  const close = () => {
    if (!item.length) return;
    const [first, ...rest] = item;
    const width = rest.find((line) => line.trim())?.match(/^\s*/)[0].length || 0;
    element.append(h("li", {}, ...inline(first), 
      ...blocks(rest.map((line) => line.slice(Math.min(width, line.search(/\S|$/)))), depth + 1)));
  };
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= indent.length) {
      close();
      item = [match[3]];
    } else item.push(line);
  }
  close();
  return element;
}

function table(lines) {
  const cells = (line) => ROW.exec(line)[1].split("|").map((cell) => inline(cell.trim()));
  const [head, , ...rows] = lines;
  return h("div", { className: "table", tabIndex: 0 }, h("table", {},
    h("thead", {}, h("tr", {}, ...cells(head).map((cell) => h("th", { scope: "col" }, ...cell)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...cells(row).map((cell) => h("td", {}, ...cell)))))));
}

// Leave out the # that close a heading; those of "C#" belong to its text. A loop, because models can write thousands.
function unclosed(heading) {
  const text = heading.trimEnd();
  let end = text.length;
  while (text[end - 1] === "#") end--;
  return end && text[end - 1] !== " " ? text : text.slice(0, end).trimEnd();
}

// Return how many lines from `place` on belong together.
const run = (lines, place, test) => {
  let end = place;
  while (end < lines.length && test(lines[end])) end++;
  return end;
};

function blocks(lines, depth = 0) {
  if (depth > DEEPEST) return [h("p", {}, lines.join("\n"))];
  const found = [];
  for (let place = 0; place < lines.length; ) {
    const line = lines[place];
    const fence = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line);
    const heading = /^(#{1,6})\s+([^]*)$/.exec(line);
    let end = place + 1;
    if (fence) {
      end = run(lines, place + 1, (each) => !each.trim().startsWith(fence[1]));
      found.push(codeBlock(lines.slice(place + 1, end).join("\n"), fence[2]));
      end++;
    } else if (heading) {
      found.push(h(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(unclosed(heading[2]))));
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      found.push(h("hr"));
    } else if (ITEM.test(line)) {
      end = run(lines, place, (each) => ITEM.test(each) || /^\s{2,}\S/.test(each));
      found.push(list(lines.slice(place, end), depth));
    } else if (/^\s*>/.test(line)) {
      end = run(lines, place, (each) => /^\s*>/.test(each));
      found.push(h("blockquote", {}, 
        ...blocks(lines.slice(place, end).map((each) => each.replace(/^\s*> ?/, "")), depth + 1)));
    } else if (ROW.test(line) && /^[\s|:-]+$/.test(lines[place + 1] || "")) {
      end = run(lines, place, (each) => ROW.test(each));
      found.push(table(lines.slice(place, end)));
    } else if (line.trim()) {
      end = run(lines, place + 1, (each) => each.trim() && !/^\s*(#{1,6}\s|>|`{3}|~{3})/.test(each) && !ITEM.test(each));
      const paragraph = h("p");
      lines.slice(place, end).forEach((each, number) => {
        if (number) paragraph.append(h("br"));
        paragraph.append(...inline(each));
      });
      found.push(paragraph);
    }
    place = end;
  }
  return found;
}

export const markdown = (text) => blocks(text.split("\n"));
