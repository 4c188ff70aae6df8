// Show the messages of a conversation: edit, branch, repeat and copy them, and answer tool calls by hand.

import { copy, $, h, seconds } from "./dom.js";
import { codeBlock, markdown } from "./markdown.js";
import { run, show } from "./run.js";
import { showCode } from "./snippets.js";
import { add, choose, emit, on, path, save, siblings, state } from "./state.js";

const SUGGESTIONS = ["Who are you?", "Count from 3 to 7.", "Write a haiku about a plumb line.", "What is the weather in Paris?"];
let follows = true; // Whether the view scrolls with the answer; the reader ends that by scrolling up.

const button = (label, onclick, more = {}) => h("button", { type: "button", className: "quiet", onclick, ...more }, label);
const parsed = (text) => { try { return JSON.parse(text); } catch { return undefined; } };
const pretty = (text) => (parsed(text) === undefined ? text : JSON.stringify(parsed(text), null, 2));

function toolbar(node, ...buttons) {
  const same = siblings(state.conversation, node);
  const place = same.indexOf(node);
  const turn = (step, label, sign) => button(sign, () => {
    choose(state.conversation, same[place + step]);
    save();
    emit("thread");
  }, { disabled: !same[place + step], ariaLabel: label });
  return h("div", { className: "toolbar" },
    same.length > 1 && h("span", { className: "branches" }, turn(-1, "Previous branch", "‹"),
      `${place + 1}/${same.length}`, turn(1, "Next branch", "›")),
    ...buttons);
}

function userMessage(node) {
  const article = h("article", { className: "message user", ariaLabel: "You" });
  const edit = () => {
    const text = h("textarea", { value: node.text, ariaLabel: "Edited message", rows: 3 });
    article.replaceChildren(h("form", { className: "edit", onsubmit: (event) => {
      event.preventDefault();
      run(add(state.conversation, node.parent, { role: "user", text: text.value, images: node.images }));
    } }, text, h("div", { className: "actions" }, button("Cancel", () => emit("thread")),
      h("button", { className: "primary" }, "Send as a new branch"))));
    text.focus();
  };
  article.append(
    h("div", { className: "bubble" },
      ...(node.images || []).map((url) => h("img", { src: url, alt: "Attached picture", className: "picture" })),
      h("div", { className: "plain" }, node.text)),
    toolbar(node, button("Edit", edit, { disabled: Boolean(state.live) }), button("Copy", () => copy(node.text, "Message"))));
  return article;
}

function toolMessage(node) {
  return h("article", { className: "message tool", ariaLabel: "Tool result" },
    h("p", { className: "label" }, `Result of ${node.name || node.call}`), h("pre", { tabIndex: 0 }, node.text));
}

function calls(node, answer) {
  const last = state.conversation.leaf === node.id && state.live?.node !== node;
  const fields = answer.calls.map((call) => h("textarea", { rows: 2, required: true,
    ariaLabel: `Result of ${call.name}`, placeholder: "What this tool returns, as text or JSON" }));
  const cards = answer.calls.map((call, place) => h("div", { className: "call" },
    h("p", { className: "label" }, "Tool call ", h("code", {}, call.name)),
    h("pre", { tabIndex: 0 }, pretty(call.input)), last && fields[place]));
  if (!last || !cards.length) return cards;
  return [h("form", { className: "calls", onsubmit: (event) => {
    event.preventDefault();
    let parent = node;
    answer.calls.forEach((call, place) => (parent = add(state.conversation, parent.id,
      { role: "tool", call: call.id, name: call.name, text: fields[place].value })));
    run(parent);
  } }, ...cards, h("div", { className: "actions" },
    h("button", { className: "primary" }, cards.length > 1 ? "Send the results" : "Send the result")))];
}

function problem(error) {
  const about = [error.param && `field ${error.param}`, error.code, error.status && `status ${error.status}`];
  return h("div", { className: "problem", role: "alert" }, h("p", {}, error.message || "The answer failed."),
    h("p", { className: "muted" }, about.filter(Boolean).join(" · ")));
}

// A server may send the thinking, a summary of it, or both, which can be the same.
const thoughts = (answer) => answer.thinking || answer.summary || "";

function thinking(node, answer, writing) {
  const open = !answer.text && !answer.calls.length && writing;
  return h("details", { className: "thinking", open: node.open, ontoggle: (event) => (node.open = event.target.open) },
    h("summary", {}, open ? "Thinking…" : "Thinking", h("span", { className: "muted" }, ` ${thoughts(answer).length} characters`)),
    h("div", { className: "plain" }, thoughts(answer)));
}

function facts(node, answer) {
  const used = answer.usage || {};
  const written = used.completion_tokens ?? used.output_tokens;
  const writing = node.seconds - node.firstToken;
  const speed = written > 1 && writing > 0.01 ? (written - 1) / writing : 0; // What came in one piece has no speed.
  return [answer.finish, written !== undefined && `${written} tokens`, node.firstToken && `first after ${seconds(node.firstToken)}`,
    speed && `${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s`].filter(Boolean).join(" · ");
}

function written(node, { text }) {
  if (node.api === "completions") return [h("div", { className: "plain" }, text)];
  return typeof parsed(text) === "object" ? [codeBlock(pretty(text), "json")] : markdown(text);
}

function answerParts(node, answer) {
  const writing = state.live?.node === node;
  const empty = !answer.text && !thoughts(answer) && !answer.calls.length && !answer.error;
  return [
    thoughts(answer) && thinking(node, answer, writing),
    answer.text && h("div", { className: "text" }, ...written(node, answer)),
    ...calls(node, answer),
    answer.error && problem(answer.error),
    writing && h("p", { className: "writing", ariaLabel: "The answer is being written" }, empty ? "Waiting for the first token" : ""),
    !writing && empty && h("p", { className: "muted" }, "The answer is empty."),
  ].filter(Boolean);
}

function assistantMessage(node) {
  const body = h("div", { className: "body" }, ...answerParts(node, node.answer));
  const busy = Boolean(state.live);
  return h("article", { className: "message assistant", id: `m${node.id}`, ariaLabel: "Answer" }, body,
    state.live?.node !== node && toolbar(node,
      button("Copy", () => copy(node.answer.text, "Answer")),
      button("Try again", () => run(state.conversation.nodes[node.parent]), { disabled: busy || !node.parent }),
      node.record && button("Events", () => show(node)), node.record && button("Code", () => showCode(node)),
      h("span", { className: "muted facts" }, facts(node, node.answer))));
}

function welcome() {
  return h("div", { className: "welcome" },
    h("h2", {}, "What shall we try?"),
    h("p", { className: "muted" }, "Every answer is shown with the events that it came in, judged by the rules of the API."),
    h("div", { className: "suggestions" }, ...SUGGESTIONS.map((text) => h("button", { type: "button", onclick: () => {
      $("prompt").value = text;
      $("composer").requestSubmit();
    } }, text))));
}

const VIEWS = { user: userMessage, tool: toolMessage, assistant: assistantMessage };

function render() {
  const nodes = path(state.conversation);
  $("messages").replaceChildren(...(nodes.length ? nodes.map((node) => VIEWS[node.role](node)) : [welcome()]));
  follow();
}

function follow() {
  if (follows) $("thread").scrollTop = $("thread").scrollHeight;
}

// Draw an answer again, as it is or as it was after some of its events.
export function draw(node, answer = node.answer) {
  $(`m${node.id}`)?.querySelector(".body").replaceChildren(...answerParts(node, answer));
}

let drawing = false;
let cost = 0; // Milliseconds of the last drawing. A long answer is drawn less often: the page stays free most of the time.
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
  on("answer", drawSoon);
}

export const followAgain = () => (follows = true);
