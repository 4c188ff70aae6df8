// Build elements. Text always becomes a text node, so nothing that a model or a server writes can be markup.

import { t } from "./texts.js";

export const $ = (id) => document.getElementById(id);

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Make elements the children of another. Those in their places are not moved: that costs time, and ends a selection.
export function arrange(parent, elements) {
  const kept = new Set(elements);
  for (const each of [...parent.children]) if (!kept.has(each)) each.remove();
  elements.forEach((each, place) => parent.children[place] === each || parent.insertBefore(each, parent.children[place] || null));
}

export function svg(tag, props, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

let hiding;
export function notice(text) {
  $("notice").textContent = text;
  clearTimeout(hiding);
  hiding = setTimeout(() => ($("notice").textContent = ""), 4000);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    notice(t("copied", { what }));
  } catch {
    notice(t("copy_failed"));
  }
}

export const seconds = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`);
export const bytes = (value) =>
  value < 1024 ? `${value} B` : value < 2 ** 20 ? `${(value / 1024).toFixed(1)} KiB`
  : value < 2 ** 30 ? `${(value / 2 ** 20).toFixed(1)} MiB` : `${(value / 2 ** 30).toFixed(1)} GiB`;
export const id = () => crypto.getRandomValues(new Uint32Array(3)).join("");
