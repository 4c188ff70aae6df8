// Show the messages of a conversation: edit, branch, repeat and copy them, and answer tool calls by hand.

import { answerView } from "./answer.js";
import { resultCard } from "./calls.js";
import { Chunks } from "./chunks.js";
import { openCompare } from "./compare.js";
import { arrange, copy, $, h, seconds } from "./dom.js";
import { TOOL } from "./examples.js";
import { run, show } from "./run.js";
import { showCode } from "./snippets.js";
import { add, choose, emit, on, path, save, saveSettings, siblings, state } from "./state.js";
import { t } from "./texts.js";

const LONG = 10_000; // Characters of a message of the user; of a longer one so many are shown:
const SHOWN = 4000;
let follows = true; // Whether the view scrolls with the answer; the reader ends that by scrolling up.

const button = (label, onclick, more = {}) => h("button", { type: "button", className: "quiet", onclick, ...more }, label);

function toolbar(node, ...buttons) {
  const same = siblings(state.conversation, node);
  const place = same.indexOf(node);
  const turn = (step, label, sign) => button(sign, () => {
    choose(state.conversation, same[place + step]);
    save();
    emit("thread");
  }, { disabled: !same[place + step], ariaLabel: label });
  return h("div", { className: "toolbar" },
    same.length > 1 && h("span", { className: "branches" }, turn(-1, t("branch_before"), "‹"),
      `${place + 1}/${same.length}`, turn(1, t("branch_after"), "›")),
    ...buttons);
}

// The text of a message; of a long one the beginning, until the reader asks for the rest.
function written(text) {
  const inner = h("div", { className: "plain", dir: "auto" }, text.length > LONG ? `${text.slice(0, SHOWN)}…` : text);
  if (text.length <= LONG) return [inner];
  const rest = button(t("show_all", { count: text.length }), () => {
    inner.replaceChildren();
    new Chunks(inner).update(text);
    rest.remove();
  });
  return [inner, rest];
}

function userMessage(node) {
  const article = h("article", { className: "message user", ariaLabel: t("you") });
  const edit = () => {
    const text = h("textarea", { value: node.text, ariaLabel: t("edited"), rows: 3, dir: "auto" });
    article.replaceChildren(h("form", { className: "edit", onsubmit: (event) => {
      event.preventDefault();
      run(add(state.conversation, node.parent, { role: "user", text: text.value, images: node.images }));
    } }, text, h("div", { className: "actions" }, button(t("cancel"), () => emit("thread")),
      h("button", { className: "primary" }, t("send_branch")))));
    text.focus();
  };
  article.append(
    h("div", { className: "bubble" },
      ...(node.images || []).map((url) => h("img", { src: url, alt: t("picture_attached"), className: "picture" })),
      ...written(node.text)),
    toolbar(node, button(t("edit"), edit, { disabled: Boolean(state.live) }), button(t("copy"), () => copy(node.text, t("message")))));
  return article;
}

function facts(node, answer) {
  const used = answer.usage || {};
  const written = used.completion_tokens ?? used.output_tokens;
  const writing = node.seconds - node.firstToken;
  const speed = written > 1 && writing > 0.01 ? (written - 1) / writing : 0; // What came in one piece has no speed.
  return [answer.finish, written !== undefined && t("facts_tokens", { count: written }),
    node.firstToken && t("facts_first", { time: seconds(node.firstToken) }),
    speed && t("facts_speed", { speed: speed.toFixed(speed < 10 ? 1 : 0) })].filter(Boolean).join(" · ");
}

function assistantMessage(node) {
  const view = answerView(node);
  view.draw();
  const busy = Boolean(state.live);
  const parent = state.conversation.nodes[node.parent];
  arrange(view.article, [view.heading, view.element, state.live?.node !== node && toolbar(node,
      button(t("copy"), () => copy(node.answer.text, t("answer"))),
      button(t("again"), () => run(parent), { disabled: busy || !parent }),
      button(t("compare"), openCompare, { disabled: busy }),
      node.record && button(t("events"), () => show(node)), node.record && button(t("code"), () => showCode(node)),
      h("span", { className: "muted facts" }, facts(node, node.answer)))].filter(Boolean));
  return view.article;
}

// What to begin with. The one that needs a tool brings it: without it, a model answers with the markup of a call.
function suggestions() {
  if (state.settings.api === "completions") return [[t("suggest_story")], [t("suggest_list")]];
  const tool = () => { state.settings.tools ||= TOOL; saveSettings(); emit("settings"); };
  return [[t("suggest_who")], [t("suggest_count")], [t("suggest_haiku")], [t("suggest_weather"), tool]];
}

function welcome() {
  return h("div", { className: "welcome" },
    h("h2", {}, t("welcome")),
    h("p", { className: "muted" }, t("welcome_about")),
    h("div", { className: "suggestions" }, ...suggestions().map(([text, prepare]) => h("button", { type: "button", onclick: () => {
      prepare?.();
      $("prompt").value = text;
      $("composer").requestSubmit();
    } }, text))));
}

const VIEWS = { user: userMessage, tool: resultCard, assistant: assistantMessage };

function render() {
  const nodes = path(state.conversation);
  arrange($("messages"), nodes.length ? nodes.map((node) => VIEWS[node.role](node)) : [welcome()]);
  follow();
}

function follow() {
  if (follows) $("thread").scrollTop = $("thread").scrollHeight;
}

// Draw an answer again, as it is or as it was after some of its events.
export const draw = (node, answer = node.answer) => answerView(node).draw(answer);

let drawing = false;
let cost = 0; // Milliseconds of the last drawing. What is slow is drawn less often: the page stays free most of the time.
function drawSoon(live) {
  if (drawing) return;
  drawing = true;
  setTimeout(() => requestAnimationFrame(() => {
    drawing = false;
    if (state.live !== live) return;
    const began = performance.now();
    draw(live.node);
    follow();
    cost = performance.now() - began;
  }), cost < 4 ? 0 : 4 * cost);
}

export function startThread() {
  const thread = $("thread");
  thread.addEventListener("scroll", () => {
    follows = thread.scrollHeight - thread.scrollTop - thread.clientHeight < 60;
  });
  on("thread", render);
  on("api", () => state.conversation.leaf || render());
  on("answer", drawSoon);
}

export const followAgain = () => (follows = true);
