// Tool calls as cards with their arguments and results. A result is written by hand.

import { h } from "./dom.js";
import { run } from "./run.js";
import { add, path, state } from "./state.js";
import { t } from "./texts.js";
import { values } from "./tree.js";

const parsed = (text) => { try { return JSON.parse(text); } catch { return undefined; } };

// The result of a call in this conversation, if it was sent.
const resultOf = (call) => path(state.conversation).find((node) => node.role === "tool" && node.call === call.id);

function card(call, field) {
  const input = parsed(call.input || "{}");
  const sent = field ? null : resultOf(call);
  return h("div", { className: "call" },
    h("p", { className: "label" }, `${t("call")} `, h("code", {}, call.name)),
    input && typeof input === "object" && !Array.isArray(input) && Object.keys(input).length > 0 && values(input),
    h("details", { open: input === undefined }, h("summary", { className: "muted" }, t("call_arguments")),
      h("pre", { tabIndex: 0, dir: "ltr" }, input === undefined ? call.input : JSON.stringify(input, null, 2))),
    field && h("label", { className: "label" }, t("call_result", { name: call.name }), field),
    sent && h("p", { className: "label" }, t("call_answered")));
}

export function callCards(node, answer, last) {
  const fields = answer.calls.map(() => h("textarea", { rows: 2, required: true, placeholder: t("call_hint") }));
  const cards = answer.calls.map((call, place) => card(call, last && fields[place]));
  if (!last) return cards;
  return [h("form", { className: "calls", onsubmit: (event) => {
    event.preventDefault();
    let parent = node;
    answer.calls.forEach((call, place) => (parent = add(state.conversation, parent.id,
      { role: "tool", call: call.id, name: call.name, text: fields[place].value })));
    run(parent);
  } }, ...cards, h("div", { className: "actions" },
    h("button", { className: "primary" }, cards.length > 1 ? t("call_send_all") : t("call_send"))))];
}

export function resultCard(node) {
  const value = parsed(node.text);
  return h("article", { className: "message tool", ariaLabel: t("tool_result") },
    h("p", { className: "label" }, `${t("result_of")} `, h("code", {}, node.name || node.call)),
    h("pre", { tabIndex: 0, dir: "auto" }, typeof value === "object" && value ? JSON.stringify(value, null, 2) : node.text));
}
