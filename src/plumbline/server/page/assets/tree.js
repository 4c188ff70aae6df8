// JSON as a tree that folds, with the verdict of its schema.

import { codeBlock } from "./code.js";
import { h } from "./dom.js";
import { api } from "./stream.js";
import { t } from "./texts.js";

const OPEN = 2; // Levels that are open at first.
const MOST = 200; // Members that are shown at once.

const leaf = (value) => h("span", { className: `value ${value === null ? "null" : typeof value}`, dir: "auto" },
  typeof value === "string" ? value : JSON.stringify(value));

function branch(name, value, depth) {
  const label = name === null ? null : h("span", { className: "member" }, `${name}: `);
  if (value === null || typeof value !== "object") return h("div", { className: "leaf" }, label, leaf(value));
  const members = Object.entries(value);
  const count = h("span", { className: "muted" }, Array.isArray(value) ? `[${members.length}]` : `{${members.length}}`);
  const inner = h("div", { className: "members" });
  let shown = 0;
  const more = () => {
    const next = members.slice(shown, (shown += MOST));
    inner.append(...next.map(([each, child]) => branch(each, child, depth + 1)));
    if (shown < members.length) {
      inner.append(h("button", { type: "button", className: "quiet", onclick: ({ target }) => { target.remove(); more(); } },
        t("tree_more", { count: members.length - shown })));
    }
  };
  const toggled = ({ target }) => { if (target.open && !shown) more(); };
  if (depth < OPEN) more();
  return h("details", { className: "branch", open: depth < OPEN, ontoggle: toggled }, h("summary", {}, label, count), inner);
}

async function verdict(schema, text, line) {
  try {
    const response = await api("/page/validate", { method: "POST", body: JSON.stringify({ schema, text }) });
    const { problems } = await response.json();
    line.className = problems.length ? "verdict wrong" : "verdict right";
    line.replaceChildren(problems.length ? t("schema_broken") : t("schema_kept"),
      ...problems.map(({ pointer, message }) => h("div", {}, h("code", { dir: "ltr" }, pointer || "/"), ` ${message}`)));
  } catch (error) {
    line.textContent = t("schema_unknown", { problem: error.message });
  }
}

// Show a value as a tree or as text; `schema` is the one that the request asked for.
export function jsonTree(value, text, schema) {
  const tree = h("div", { className: "tree", dir: "ltr" }, branch(null, value, 0));
  const code = h("div", { hidden: true });
  const other = h("button", { type: "button", className: "quiet", onclick: () => {
    if (!code.firstChild) code.append(codeBlock(JSON.stringify(value, null, 2), "json"));
    [code.hidden, tree.hidden] = [!code.hidden, !tree.hidden];
    other.textContent = code.hidden ? t("tree_text") : t("tree_tree");
  } }, t("tree_text"));
  const line = schema ? h("div", { className: "verdict muted", role: "status" }, t("schema_checking")) : null;
  if (line) verdict(schema, text, line);
  return h("div", { className: "json" }, line, tree, code, other);
}

// The members of an object in lines, for what is small.
export const values = (object) => h("dl", { className: "facts" }, ...Object.entries(object).flatMap(([name, value]) => [
  h("dt", {}, name), h("dd", { dir: "auto" }, typeof value === "string" ? value : JSON.stringify(value))]));
