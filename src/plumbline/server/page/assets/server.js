// The state of the server: models, engine and memory, numbers over time as sparklines, and the latest requests.

import { bytes, h, seconds, svg } from "./dom.js";
import { show } from "./run.js";
import { emit, on, state } from "./state.js";
import { all } from "./storage.js";
import { api } from "./stream.js";
import { language, t } from "./texts.js";

const EVERY = 2000; // Milliseconds between readings.
const KEPT = 60;
const readings = []; // { at, sums } of /metrics; the newest is last.
let texts = false;
let own = null; // A promise of the messages of this browser by the ids of their requests; reading them takes long.
on("conversations", () => (own = null));

function sumsOf(text) {
  const sums = {};
  for (const line of text.split("\n")) {
    const match = /^plumbline_(\w+?)(?:\{.*\})? ([-+.\deE]+)$/.exec(line);
    if (match && !match[1].endsWith("_bucket")) sums[match[1]] = (sums[match[1]] || 0) + Number(match[2]);
  }
  return sums;
}

// The growth of one counter for each unit of another between two readings.
const ratio = (one, other) => ({ sums }, before) => {
  const by = sums[other] - before.sums[other];
  return by > 0 ? (sums[one] - before.sums[one]) / by : null;
};
const mean = (name) => ratio(`${name}_seconds_sum`, `${name}_seconds_count`);
const gauge = (name) => ({ sums }) => sums[name];
const tokensPerSecond = ({ at, sums }, before) =>
  (sums.generation_tokens_total - before.sums.generation_tokens_total) / ((at - before.at) / 1000);
const share = (value) => `${Math.round(100 * value)} %`;
const plain = (value) => (value < 10 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value).toString());

const SERIES = [
  [t("running"), gauge("num_requests_running"), plain], [t("queued"), gauge("num_requests_waiting"), plain],
  [t("speed"), tokensPerSecond, plain], [t("first_token"), mean("time_to_first_token"), seconds],
  [t("between"), mean("inter_token_latency"), seconds], [t("whole_answers"), mean("e2e_request_latency"), seconds],
  [t("cache_hits"), ratio("prefix_cache_hits_total", "prefix_cache_queries_total"), share],
  [t("cache_used"), gauge("kv_cache_usage_ratio"), share],
];

function sparkline(values) {
  const high = Math.max(...values, 1e-9);
  const points = values.map((value, place) => `${((KEPT - values.length + place) * 100) / (KEPT - 1)},${(22 - (20 * value) / high).toFixed(1)}`);
  return svg("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("polyline", { points: points.join(" ") }));
}

function tile([label, read, form]) {
  const values = [];
  let known = null; // A time is known only where a request ended; the line keeps the last one.
  readings.slice(1).forEach((reading, place) => values.push((known = read(reading, readings[place]) ?? known) ?? 0));
  return h("div", { className: "tile" }, h("span", { className: "muted" }, label),
    h("b", {}, known === null ? "–" : form(known)), sparkline(values.length ? values : [0]));
}

const facts = (pairs) => h("dl", { className: "facts" }, ...pairs.filter(([, value]) => value).flatMap(([name, value]) =>
  [h("dt", {}, name), h("dd", {}, value)]));

function card(model) {
  const { engine } = model;
  return h("div", { className: "card" }, h("h2", {}, model.names.join(", ")), facts([
    [t("engine"), `${engine.name}: ${engine.why}`], [t("context"), t("facts_tokens", { count: engine.context.toLocaleString(language) })],
    [t("weights"), model.weight_bytes && bytes(model.weight_bytes)], [t("vocabulary"), engine.vocabulary.toLocaleString(language)],
    [t("device"), engine.runs_on], [t("cache"), [engine.cache_bytes && bytes(engine.cache_bytes),
      engine.cache_tokens && t("facts_tokens", { count: engine.cache_tokens.toLocaleString(language) })].filter(Boolean).join(", ")],
    [t("reads"), [t("text"), ...engine.modalities].join(", ")], [t("dialect"), model.tool_calls],
  ]));
}

const messages = async () => new Map((await all("conversations")).flatMap(({ nodes }) =>
  Object.values(nodes).filter((node) => node.requestId).map((node) => [node.requestId, [node, nodes[node.parent]]])));

function requests(list, known) {
  const line = (request) => {
    const [node, asked] = known.get(request.id) || [];
    const what = texts && asked ? asked.text.slice(0, 40) : request.path;
    return h("tr", {}, h("td", {}, new Date(request.at * 1000).toTimeString().slice(0, 8)),
      h("td", {}, node ? h("button", { type: "button", className: "link", onclick: () => show(node) }, what) : what),
      h("td", {}, request.status || "…"), h("td", {}, request.first_byte === null ? "" : seconds(request.first_byte)),
      h("td", {}, request.seconds === null ? t("runs") : seconds(request.seconds)));
  };
  return h("div", { className: "table", tabIndex: 0 }, h("table", {}, h("thead", {}, h("tr", {},
    ...[t("column_at"), t("column_request"), t("column_status"), t("column_first"), t("column_whole")].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...list.map(line))));
}

export async function readStatus() {
  state.status = await (await api("/page/status")).json();
  emit("models");
}

async function refresh(view) {
  await readStatus();
  const { status } = state;
  if (status.oversees) {
    readings.push({ at: Date.now(), sums: sumsOf(await (await api("/metrics")).text()) });
    if (readings.length > KEPT + 1) readings.shift();
  }
  const known = await (own ??= messages());
  const box = h("input", { type: "checkbox", checked: texts, onchange: (event) => (texts = event.target.checked) });
  if (view.dataset.tab !== "server") return;
  const focused = view.contains(document.activeElement) && document.activeElement.type === "checkbox";
  view.replaceChildren(
    ...(status.oversees ? [h("div", { className: "tiles" }, ...SERIES.map(tile))] : []),
    ...status.models.map(card),
    h("div", { className: "card" }, h("h2", {}, `Plumbline ${status.version}`), facts([
      ["Python", status.python], [t("memory"), status.memory_bytes && bytes(status.memory_bytes)],
      [t("device_memory"), status.device_memory && status.device_memory.map(bytes).join(" / ")],
      [t("processes"), status.processes > 1 && t("processes_about", { count: status.processes })],
      [t("responses"), status.stores ? t("stored") : t("stored_not")]])),
    ...(status.oversees ? [
      h("div", { className: "line" }, h("h2", {}, t("last_requests")), h("label", { className: "check" }, box, t("show_texts"))),
      requests(status.requests, known),
    ] : [h("p", { className: "muted" }, t("needs_admin"))]));
  if (focused) box.focus();
}

export async function serverPanel(view) {
  if (!readings.length) view.replaceChildren(h("p", { className: "muted" }, t("reading")));
  while (view.dataset.tab === "server") {
    if (document.visibilityState === "visible") {
      try {
        await refresh(view);
      } catch (error) {
        view.replaceChildren(h("p", { className: "problem", role: "alert" }, t("server_silent", { problem: error.message })));
      }
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}
