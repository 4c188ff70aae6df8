// The tokens of an answer with their probabilities, and the alternatives of the chosen one.

import { h } from "./dom.js";
import { state } from "./state.js";
import { t } from "./texts.js";

const STEPS = [0.9, 0.6, 0.3, 0.1]; // Bounds of the colours.
const GROUP = 200; // Tokens.
const MOST = 500; // Tokens that are drawn at a time.
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "→").replaceAll(" ", "·") || "∅";
const level = (logprob) => STEPS.filter((bound) => Math.exp(logprob ?? 0) < bound).length;

function alternatives(token) {
  return h("table", { className: "alternatives" }, h("caption", {}, t("tokens_likely", { token: visible(token.text) })),
    h("tbody", {}, ...token.top.map(([text, logprob]) => h("tr", { className: text === token.text ? "drawn" : "" },
      h("th", { scope: "row" }, visible(text)), h("td", {}, h("meter", { min: 0, max: 1, value: Math.exp(logprob), ariaLabel: percent(logprob) })),
      h("td", {}, percent(logprob)), h("td", { className: "muted" }, logprob.toFixed(3))))));
}

// The tokens that are shown. New ones are appended, in groups that a browser leaves out of its layout while out of sight.
let drawn = {};

const likelihood = (tokens) => tokens.reduce((total, { logprob }) => total + (logprob ?? 0), 0);

function begin(view, tokens) {
  const pieces = [];
  const about = h("p", { className: "muted" });
  const detail = h("div", { className: "detail", ariaLive: "polite" });
  const list = h("div", { className: "tokens", role: "toolbar", ariaLabel: t("tokens"), onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = pieces[pieces.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  } });
  drawn = { tokens, pieces, about, detail, list, sum: 0 };
  view.replaceChildren(about, list, detail);
}

function piece(token, first) {
  return h("button", { type: "button", className: `token p${level(token.logprob)}`,
    tabIndex: first ? 0 : -1, title: token.logprob === null ? "" : percent(token.logprob),
    onfocus: () => drawn.detail.replaceChildren(alternatives(token)), onclick: ({ target }) => target.focus() }, visible(token.text));
}

export function tokensPanel(view) {
  const tokens = state.shown?.node.answer.tokens || [];
  if (!tokens.length) return view.replaceChildren(h("p", { className: "muted" }, t("tokens_none")));
  if (drawn.tokens !== tokens || !view.contains(drawn.list)) begin(view, tokens);
  const { pieces, list, about } = drawn;
  const added = tokens.slice(pieces.length, pieces.length + MOST);
  if (!added.length) return undefined;
  for (const token of added) {
    if (pieces.length % GROUP === 0) list.append(h("div", { className: "tokens" }));
    pieces.push(piece(token, !pieces.length));
    list.lastChild.append(pieces.at(-1));
  }
  drawn.sum += likelihood(added);
  about.textContent = t("tokens_about", { count: pieces.length, value: Math.exp(-drawn.sum / pieces.length).toFixed(2) });
  if (pieces.length < tokens.length) setTimeout(() => view.contains(list) && tokensPanel(view));
  return undefined;
}
