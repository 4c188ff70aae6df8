// The raw events of an answer beside it: times, rules, violations, and a slider that plays the stream again.

import { fold } from "./apis.js";
import { copy, h, seconds, svg } from "./dom.js";
import { inline } from "./markup.js";
import { state } from "./state.js";
import { draw } from "./thread.js";
import { t } from "./texts.js";

const SHORT = 90;
const MOST = 1000; // Rows that are shown at first.
let playing = 0; // The timer of a replay.

export function stopReplay() {
  clearTimeout(playing);
  playing = 0;
}

const short = (text) => (text.length > SHORT ? `${text.slice(0, SHORT)}…` : text);

// What an event is, and what it adds to the answer, in a few characters.
function summary({ name, json, data }) {
  if (!json) return [data === "[DONE]" ? "end" : name || "event", short(data)];
  const choice = json.choices?.[0];
  if (choice) {
    const delta = choice.delta ?? { text: choice.text };
    const [key, value] = Object.entries(delta).findLast(([, each]) => each) || ["chunk", ""];
    if (choice.finish_reason) return ["finish", choice.finish_reason];
    return [key, short(typeof value === "string" ? value : JSON.stringify(value.length === 1 ? value[0].function ?? value : value))];
  }
  if (json.usage && json.choices) return ["usage", `${json.usage.prompt_tokens} + ${json.usage.completion_tokens} tokens`];
  const value = json.delta ?? json.text ?? json.arguments ?? json.item ?? json.part ?? json.content_block ?? json.error ?? json.response?.status ?? "";
  const kind = (json.type || name || "event").replace(/^response\./, "");
  return [kind, short(typeof value === "string" ? value : value.text ?? value.thinking ?? value.partial_json ?? value.type ?? JSON.stringify(value))];
}

const about = (rule, rules) => (rules[rule] ? `${rule} ${rules[rule].level}: ${rules[rule].sentence}` : rule);

function finding(each, rules, folded = false) {
  const [outer, head] = folded ? ["details", "summary"] : ["div", "p"];
  return h(outer, { className: `finding ${each.verdict}` }, h(head, {}, h("b", {}, each.rule), ` ${each.title}`),
    h("p", {}, t("expected", { expected: each.expected, actual: each.actual })),
    h("p", { className: "muted" }, each.pointer && `${t("at", { place: each.pointer })} `, ...inline(rules[each.rule]?.sentence || "")));
}

function row(event, number, judgement) {
  const { events = [], findings = [], rules = {} } = judgement || {};
  const named = events[number]?.rules || [];
  const wrong = findings.filter((each) => each.event === number);
  const [kind, gist] = summary(event);
  const body = h("div", { className: "raw" });
  const open = ({ target }) => target.open && body.replaceChildren(
    ...wrong.map((each) => finding(each, rules)),
    h("pre", { tabIndex: 0 }, event.json ? JSON.stringify(event.json, null, 2) : event.data),
    h("ul", { className: "rules" }, ...named.map((rule) => h("li", {}, ...inline(about(rule, rules))))));
  return h("details", { className: wrong.length ? `event ${wrong[0].verdict}` : "event", ontoggle: open },
    h("summary", {}, h("span", { className: "time" }, seconds(event.time)), h("span", { className: "kind" }, kind),
      h("span", { className: "gist" }, gist),
      wrong.length ? h("span", { className: "mark" }, wrong[0].rule)
      : named[0] && h("span", { className: "rule", title: about(named[0], rules) }, named[0])),
    body);
}

function verdict(record) {
  const { judgement } = record;
  if (!judgement) return h("p", { className: "verdict muted" }, t("judged_not_yet"));
  if (judgement.failed) return h("p", { className: "verdict muted" }, t("judged_not", { problem: judgement.failed }));
  const count = judgement.findings.length;
  const text = count ? t("judged_wrong", { count, checks: judgement.checks })
    : t(judgement.complete ? "judged_right" : "judged_right_yet", { checks: judgement.checks });
  return h("p", { className: count ? "verdict wrong" : "verdict right" }, text);
}

function timeline(events, findings, end) {
  const at = (time) => ((time / end) * 1000).toFixed(1);
  const line = (chosen, name) => svg("path", { class: name, d: chosen.map(({ time }) => `M${at(time)} 2V22`).join("") });
  const wrong = new Set(findings.map((each) => each.event));
  return svg("svg", { viewBox: "0 0 1000 24", preserveAspectRatio: "none", class: "timeline", "aria-hidden": "true" },
    line(events, "tick"), line(events.filter((_, number) => wrong.has(number)), "tick wrong"));
}

function replay(shown, rows) {
  const { node, record, reader: { events } } = shown;
  const end = events.at(-1)?.time || 1;
  const where = h("output", {});
  const slider = h("input", { type: "range", min: 0, max: events.length, value: events.length, ariaLabel: t("events_shown") });
  const play = h("button", { type: "button", className: "quiet" }, t("replay"));
  const move = (count) => {
    slider.value = count;
    where.textContent = t("events_of", { count, all: events.length, time: seconds(count ? events[count - 1].time : 0) });
    rows.forEach((each, number) => each.classList.toggle("later", kept.from + number >= count));
    draw(node, count === events.length ? node.answer : fold(record.api, events, count));
  };
  const next = (count) => {
    move(count);
    if (count === events.length) return finish();
    const wait = events[count].time - (count ? events[count - 1].time : 0);
    return (playing = setTimeout(next, wait * 1000, count + 1));
  };
  const finish = () => {
    stopReplay();
    play.textContent = t("replay");
  };
  play.addEventListener("click", () => {
    if (playing) return finish();
    play.textContent = t("pause");
    return next(Number(slider.value) % events.length);
  });
  slider.addEventListener("input", () => {
    finish();
    move(Number(slider.value));
  });
  where.textContent = t("events_all", { all: events.length, time: seconds(end) });
  return h("div", { className: "replay" }, timeline(events, record.judgement?.findings || [], end), slider,
    h("div", { className: "line" }, play, where));
}

// What a judgement says about an event, as a text that changes with its row.
const said = ({ events = [], findings = [] } = {}, number) =>
  [events[number]?.rules, ...findings.filter((each) => each.event === number).map((each) => each.rule)].join();

// Return the rows of a record. New events are appended; a new judgement makes the rows anew about which it says something
// else, and keeps open what was. Of a long stream the last ones are shown, until the reader asks for all.
let kept = {};
function rowsOf(record, events) {
  const { judgement } = record;
  if (kept.record !== record) {
    kept = { record, judgement, from: Math.max(0, events.length - MOST), list: h("div", { className: "events" }) };
  } else if (kept.judgement !== judgement) {
    [...kept.list.children].forEach((each, place) => {
      const number = kept.from + place;
      if (said(kept.judgement ?? undefined, number) === said(judgement ?? undefined, number)) return;
      each.replaceWith(Object.assign(row(events[number], number, judgement), { open: each.open }));
    });
    kept.judgement = judgement;
  }
  for (let number = kept.from + kept.list.children.length; number < events.length; number++) {
    kept.list.append(row(events[number], number, judgement));
  }
  while (!kept.all && kept.list.children.length > 2 * MOST) {
    [...kept.list.children].slice(0, MOST).forEach((each) => each.remove());
    kept.from += MOST;
  }
  return kept.list;
}

function earlier(view) {
  return h("button", { type: "button", className: "quiet", onclick: () => {
    kept = { ...kept, list: h("div", { className: "events" }), head: null, from: 0, all: true };
    eventsPanel(view);
  } }, t("events_earlier", { count: kept.from }));
}

export function eventsPanel(view) {
  const { shown } = state;
  // Drawing the same again would end a replay.
  const drawn = shown && [shown.record.id, shown.record.status, shown.reader.events.length, state.live === shown].join();
  if (shown && kept.drawn === drawn && kept.judgement === shown.record.judgement && view.contains(kept.list)) return undefined;
  stopReplay();
  if (!shown) return view.replaceChildren(h("p", { className: "muted" }, t("events_none")));
  const { record, reader: { events } } = shown;
  const list = rowsOf(record, events);
  const rows = [...list.children];
  kept.drawn = drawn;
  const general = (record.judgement?.findings || []).filter((each) => each.event === null);
  const raw = () => new Blob(record.frames.map(([, data]) => data)).text().then((text) => copy(text, t("stream")));
  const writing = state.live?.record === record;
  const head = [
    h("div", { className: "line" }, h("h2", {}, `${record.path}`), h("span", { className: "muted" }, t("problem_status", { status: record.status || "…" })),
      h("button", { type: "button", className: "quiet", onclick: raw }, t("copy_raw"))),
    verdict(record), ...general.map((each) => finding(each, record.judgement.rules, true)),
    !writing && events.length > 1 && replay(shown, rows),
    kept.from > 0 && earlier(view),
    !events.length && record.frames.length > 0 && h("pre", { tabIndex: 0 }, new TextDecoder().decode(record.frames[0][1])),
  ].filter(Boolean);
  // The list stays where it is: a browser would lay all rows out again.
  kept.head ??= h("div", {});
  kept.head.replaceChildren(...head);
  if (!view.contains(list) || !view.contains(kept.head)) view.replaceChildren(kept.head, list);
  return undefined;
}
