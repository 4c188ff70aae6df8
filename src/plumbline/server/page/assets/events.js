// The raw events of an answer beside it: times, rules, violations, and a slider that plays the stream again.

import { fold } from "./apis.js";
import { copy, h, seconds, svg } from "./dom.js";
import { inline } from "./markup.js";
import { state } from "./state.js";
import { draw } from "./thread.js";

const SHORT = 90;
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
    h("p", {}, `Expected ${each.expected}, got ${each.actual}.`),
    h("p", { className: "muted" }, each.pointer && `At ${each.pointer}. `, ...inline(rules[each.rule]?.sentence || "")));
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
  if (!judgement) return h("p", { className: "verdict muted" }, "Not judged yet.");
  if (judgement.failed) return h("p", { className: "verdict muted" }, `Not judged: ${judgement.failed}`);
  const count = judgement.findings.length;
  const text = count ? `${count} violation${count > 1 ? "s" : ""} found by ${judgement.checks} checks.`
    : `${judgement.checks} checks found no violation${judgement.complete ? "" : " so far"}.`;
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
  const slider = h("input", { type: "range", min: 0, max: events.length, value: events.length, ariaLabel: "Events shown" });
  const play = h("button", { type: "button", className: "quiet" }, "Replay");
  const move = (count) => {
    slider.value = count;
    where.textContent = `${count} of ${events.length} events · ${seconds(count ? events[count - 1].time : 0)}`;
    rows.forEach((each, number) => each.classList.toggle("later", number >= count));
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
    play.textContent = "Replay";
  };
  play.addEventListener("click", () => {
    if (playing) return finish();
    play.textContent = "Pause";
    return next(Number(slider.value) % events.length);
  });
  slider.addEventListener("input", () => {
    finish();
    move(Number(slider.value));
  });
  where.textContent = `${events.length} events · ${seconds(end)}`;
  return h("div", { className: "replay" }, timeline(events, record.judgement?.findings || [], end), slider,
    h("div", { className: "line" }, play, where));
}

// Return the rows of a record. New events are appended; a new judgement makes all rows anew, and keeps open what was.
let kept = {};
function rowsOf(record, events) {
  const { judgement } = record;
  if (kept.record !== record || kept.judgement !== judgement) {
    const open = kept.record === record ? [...kept.list.children].map((each) => each.open) : [];
    kept = { record, judgement, list: h("div", { className: "events" }) };
    kept.list.append(...open.map((opened, number) => Object.assign(row(events[number], number, judgement), { open: opened })));
  }
  for (let number = kept.list.children.length; number < events.length; number++) {
    kept.list.append(row(events[number], number, judgement));
  }
  return kept.list;
}

export function eventsPanel(view) {
  const { shown } = state;
  // Drawing the same again would end a replay.
  const drawn = shown && [shown.record.id, shown.record.status, shown.reader.events.length, state.live === shown].join();
  if (shown && kept.drawn === drawn && kept.judgement === shown.record.judgement && view.contains(kept.list)) return undefined;
  stopReplay();
  if (!shown) return view.replaceChildren(h("p", { className: "muted" }, "The events of an answer appear here while it is written."));
  const { record, reader: { events } } = shown;
  const list = rowsOf(record, events);
  const rows = [...list.children];
  kept.drawn = drawn;
  const general = (record.judgement?.findings || []).filter((each) => each.event === null);
  const raw = () => new Blob(record.frames.map(([, data]) => data)).text().then((text) => copy(text, "The stream"));
  const writing = state.live?.record === record;
  return view.replaceChildren(...[
    h("div", { className: "line" }, h("h2", {}, `${record.path}`), h("span", { className: "muted" }, `status ${record.status || "…"}`),
      h("button", { type: "button", className: "quiet", onclick: raw }, "Copy raw")),
    verdict(record), ...general.map((each) => finding(each, record.judgement.rules, true)),
    !writing && events.length > 1 && replay(shown, rows),
    list,
    !events.length && record.frames.length > 0 && h("pre", { tabIndex: 0 }, new TextDecoder().decode(record.frames[0][1])),
  ].filter(Boolean));
}
