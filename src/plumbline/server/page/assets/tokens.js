// The tokens of an answer with their probabilities, and the alternatives of the chosen one.

import { h } from "./dom.js";
import { state } from "./state.js";
import { t } from "./texts.js";

const STEPS = [0.9, 0.6, 0.3, 0.1]; // Bounds of the colours.
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "→").replaceAll(" ", "·") || "∅";
const level = (logprob) => STEPS.filter((bound) => Math.exp(logprob ?? 0) < bound).length;

function alternatives(token) {
  return h("table", { className: "alternatives" }, h("caption", {}, t("tokens_likely", { token: visible(token.text) })),
    h("tbody", {}, ...token.top.map(([text, logprob]) => h("tr", { className: text === token.text ? "drawn" : "" },
      h("th", { scope: "row" }, visible(text)), h("td", {}, h("meter", { min: 0, max: 1, value: Math.exp(logprob), ariaLabel: percent(logprob) })),
      h("td", {}, percent(logprob)), h("td", { className: "muted" }, logprob.toFixed(3))))));
}

let drawn = {}; // The tokens that are shown, so that drawing them again does not take the focus away.

export function tokensPanel(view) {
  const tokens = state.shown?.node.answer.tokens || [];
  if (drawn.tokens === tokens && drawn.count === tokens.length && view.querySelector(".tokens")) return;
  drawn = { tokens, count: tokens.length };
  if (!tokens.length) {
    view.replaceChildren(h("p", { className: "muted" },
      t("tokens_none")));
    return;
  }
  const detail = h("div", { className: "detail", ariaLive: "polite" });
  const pieces = tokens.map((token, number) => h("button", { type: "button", className: `token p${level(token.logprob)}`,
    tabIndex: number ? -1 : 0, title: token.logprob === null ? "" : percent(token.logprob),
    onfocus: () => detail.replaceChildren(alternatives(token)), onclick: ({ target }) => target.focus() }, visible(token.text)));
  const list = h("div", { className: "tokens", role: "toolbar", ariaLabel: t("tokens"), onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = pieces[pieces.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  } }, ...pieces);
  const sum = tokens.reduce((total, { logprob }) => total + (logprob ?? 0), 0);
  view.replaceChildren(
    h("p", { className: "muted" }, t("tokens_about", { count: tokens.length, value: Math.exp(-sum / tokens.length).toFixed(2) })),
    list, detail);
}
