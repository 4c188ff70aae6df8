// Write a request as code: curl, Python with the clients of OpenAI and Anthropic, JavaScript, and JSON.

import { APIS } from "./apis.js";
import { copy, $, h } from "./dom.js";
import { state } from "./state.js";
import { get } from "./storage.js";
import { base, key } from "./stream.js";
import { t } from "./texts.js";

const KEY = "PLUMBLINE_API_KEY";

function python(value, indent = "") {
  const inner = `${indent}    `;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const parts = Object.entries(value).map(([name, each]) =>
    `${inner}${list ? "" : `${JSON.stringify(name)}: `}${python(each, inner)},\n`);
  const [open, close] = list ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.join("")}${indent}${close}` : open + close;
}

function curl(path, body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", `'\\''`);
  const auth = key() ? ` \\\n  -H "Authorization: Bearer $${KEY}"` : "";
  return `curl -N ${base}${path} \\\n  -H "Content-Type: application/json"${auth} \\\n  -d '${quoted}'`;
}

// What the clients name themselves; the rest of a body goes into `extra_body`.
const NAMED = ["model", "stream", "stream_options", "tools", "tool_choice"];
const SAMPLING = ["temperature", "top_p", "top_logprobs"];
const COUNTS = ["logprobs", "max_tokens", "seed", "stop", "n", "presence_penalty", "frequency_penalty"];
const CALLS = {
  "/v1/chat/completions": ["chat.completions", "messages", "response_format", "max_completion_tokens", "reasoning_effort", ...SAMPLING, ...COUNTS],
  "/v1/completions": ["completions", "prompt", "temperature", "top_p", ...COUNTS],
  "/v1/responses": ["responses", "input", "instructions", "store", "previous_response_id", "include", "max_output_tokens", "reasoning", "text", ...SAMPLING],
  "/v1/messages": ["messages", "messages", "max_tokens", "system", "stop_sequences"],
};

function pythonCode(path, body) {
  const [call, ...own] = CALLS[path];
  const [named, extra] = [{}, {}];
  for (const [name, value] of Object.entries(body)) ([...NAMED, ...own].includes(name) ? named : extra)[name] = value;
  const client = path === "/v1/messages" ? ["anthropic", "Anthropic", base] : ["openai", "OpenAI", `${base}/v1`];
  const parts = Object.entries(named).map(([name, value]) => `    ${name}=${python(value, "    ")},\n`);
  if (Object.keys(extra).length) parts.push(`    extra_body=${python(extra, "    ")},\n`);
  return `${key() ? "import os\n\n" : ""}from ${client[0]} import ${client[1]}

client = ${client[1]}(base_url="${client[2]}", api_key=${key() ? `os.environ["${KEY}"]` : '"none"'})
for event in client.${call}.create(
${parts.join("")}):
    print(event.model_dump_json())
`;
}

function javascript(path, body) {
  const auth = key() ? `, authorization: \`Bearer \${process.env.${KEY}}\`` : "";
  return `const answer = await fetch("${base}${path}", {
  method: "POST",
  headers: { "content-type": "application/json"${auth} },
  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),
});
const decoder = new TextDecoder();
for await (const part of answer.body) {
  process.stdout.write(decoder.decode(part, { stream: true }));
}
`;
}

const LANGUAGES = { curl, Python: pythonCode, JavaScript: javascript, JSON: (_, body) => JSON.stringify(body, null, 2) };

export function showRequest(body) {
  const { path } = APIS[state.settings.api];
  open(path, body);
}

export async function showCode(node) {
  const record = await get("records", node.record);
  if (record) open(record.path, JSON.parse(record.body));
}

function open(path, body) {
  const code = h("code", {});
  const choose = (name) => {
    code.textContent = LANGUAGES[name](path, body);
    tabs.forEach((tab) => tab.setAttribute("aria-pressed", String(tab.textContent === name)));
  };
  const tabs = Object.keys(LANGUAGES).map((name) => h("button", { type: "button", className: "quiet", onclick: () => choose(name) }, name));
  $("code").replaceChildren(
    h("div", { className: "line" }, h("h2", { id: "code-title" }, t("code_title")), ...tabs),
    h("pre", { tabIndex: 0 }, code),
    h("div", { className: "actions" },
      h("button", { type: "button", className: "quiet", onclick: () => $("code").close() }, t("close")),
      h("button", { type: "button", className: "primary", onclick: () => copy(code.textContent, t("code")) }, t("copy"))));
  choose("curl");
  $("code").showModal();
}
