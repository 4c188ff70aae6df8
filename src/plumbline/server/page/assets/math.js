// Formulas as models write them: \( \), \[ \], $ $ and $$ $$. KaTeX is loaded with the first one.

const CLOSERS = { "\\(": "\\)", "\\[": "\\]", "$$": "$$" };
const LONGEST = 4000; // Characters; a longer formula stays text.
const SLICE = 5; // Milliseconds of drawing at a time.

function closer(source, from, close) {
  let end = source.indexOf(close, from);
  while (end > 0 && source[end - 1] === "\\" && close[0] === "$") end = source.indexOf(close, end + 1);
  return end;
}

// A dollar opens a formula before, and closes it after, anything but a space; amounts of money are none.
function dollar(source, from) {
  if (!source[from] || /\s/.test(source[from])) return -1;
  const end = closer(source, from, "$");
  return end > from && !/\s/.test(source[end - 1]) && !/\d/.test(source[end + 1] || "") ? end : -1;
}

function inlineMath(state, silent) {
  const { src, pos } = state;
  if (src[pos] !== "$" && src[pos] !== "\\") return false;
  const open = CLOSERS[src.slice(pos, pos + 2)] ? src.slice(pos, pos + 2) : src[pos] === "$" ? "$" : "";
  if (!open) return false;
  const missing = (state.missing ??= new Set()); // So that a row of openers is not read to its end from each one.
  if (missing.has(open)) return false;
  const from = pos + open.length;
  const close = CLOSERS[open];
  const end = close ? closer(src, from, close) : dollar(src, from);
  if (close && end < 0) missing.add(open);
  if (end <= from) return false;
  if (!silent) {
    const token = state.push("math", "span", 0);
    token.content = src.slice(from, end);
    token.meta = open === "\\[" || open === "$$";
  }
  state.pos = end + (close || "$").length;
  return true;
}

function blockMath(state, start, end, silent) {
  const line = (number) => state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]).trimEnd();
  const open = line(start).slice(0, 2);
  const close = open !== "\\(" && CLOSERS[open];
  if (!close || state.sCount[start] - state.blkIndent >= 4) return false;
  for (let number = start; number < end && !state.isEmpty(number); number++) {
    const text = number === start ? line(number).slice(2) : line(number);
    if (!text.includes(close)) continue;
    if (!text.endsWith(close) || text.indexOf(close) !== text.length - 2) return false;
    if (silent) return true;
    const token = state.push("math", "span", 0);
    Object.assign(token, { block: true, map: [start, number + 1], meta: true,
      content: state.getLines(start, number + 1, state.blkIndent, false).trim().slice(2, -2) });
    state.line = number + 1;
    return true;
  }
  return false;
}

export function mathRules(markdown) {
  markdown.inline.ruler.before("escape", "math", inlineMath);
  markdown.block.ruler.before("fence", "math", blockMath, { alt: ["paragraph", "reference", "blockquote", "list"] });
  markdown.renderer.rules.math = (tokens, place) => {
    const { content, meta, block } = tokens[place];
    const span = `<span class="math${meta ? " display" : ""}" dir="ltr">${markdown.utils.escapeHtml(content)}</span>`;
    return block ? `<p dir="ltr">${span}</p>` : span;
  };
}

let katex = null;
async function load() {
  const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("vendor/katex.min.css", import.meta.url).href });
  document.head.append(style);
  await import("./vendor/katex.min.js");
  return globalThis.katex;
}

const waiting = [];
let working = false;
async function work() {
  if (!katex) {
    katex = await load();
    await new Promise(requestAnimationFrame); // Reading the library took long enough for one frame.
  }
  const end = performance.now() + SLICE;
  while (waiting.length && performance.now() < end) {
    const element = waiting.shift();
    if (!element.isConnected) continue;
    const source = (element.title = element.textContent);
    try {
      // It builds nodes and sets their styles one by one, as the page's policy demands; links and pictures need `trust`.
      katex.render(source, element, { displayMode: element.classList.contains("display"), strict: "ignore", maxSize: 20, maxExpand: 200 });
    } catch {
      element.textContent = source;
      element.classList.add("wrong");
    }
    element.classList.add("drawn");
  }
  working = waiting.length > 0;
  if (working) requestAnimationFrame(work);
}

export function drawMath(element) {
  if (element.textContent.length > LONGEST) return;
  waiting.push(element);
  if (working) return;
  working = true;
  requestAnimationFrame(() => work().catch(() => (working = false))); // The formulas stay as they were written.
}
