// Write a request as code: curl, Python and JavaScript.

import { APIS } from "./apis.js";
import { copy, $, h } from "./dom.js";
import { get, state } from "./state.js";
import { base, key } from "./stream.js";

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

function pythonCode(path, body) {
  const auth = key() ? `, "Authorization": f"Bearer {os.environ['${KEY}']}"` : "";
  return `import json${key() ? "\nimport os" : ""}
import urllib.request

request = urllib.request.Request(
    "${base}${path}",
    data=json.dumps(${python(body, "    ")}).encode(),
    headers={"Content-Type": "application/json"${auth}},
)
with urllib.request.urlopen(request) as answer:
    for line in answer:
        print(line.decode(), end="")
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

const LANGUAGES = { curl, Python: pythonCode, JavaScript: javascript };

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
    h("div", { className: "line" }, h("h2", { id: "code-title" }, "This request as code"), ...tabs),
    h("pre", { tabIndex: 0 }, code),
    h("div", { className: "actions" },
      h("button", { type: "button", className: "quiet", onclick: () => $("code").close() }, "Close"),
      h("button", { type: "button", className: "primary", onclick: () => copy(code.textContent, "Code") }, "Copy")));
  choose("curl");
  $("code").showModal();
}
