// Draw a Mermaid diagram as a picture. Mermaid runs in a frame with an origin and a policy of its own, and only when asked.

import { h } from "./dom.js";
import { t } from "./texts.js";

const LONGEST = 10_000; // Milliseconds.
let count = 0;

const isDark = () => ({ dark: true, light: false }[document.documentElement.dataset.theme] ?? matchMedia("(prefers-color-scheme: dark)").matches);

function drawn(text, dark) {
  const name = ++count;
  const frame = h("iframe", { className: "hidden", sandbox: "allow-scripts", src: new URL("diagram.html", import.meta.url).href, title: t("diagram"), tabIndex: -1 });
  return new Promise((resolve, reject) => {
    const ended = (result) => {
      removeEventListener("message", heard);
      clearTimeout(timer);
      frame.remove();
      if (result.svg) resolve(result.svg);
      else reject(new Error(result.error));
    };
    const heard = ({ source, data }) => {
      if (source !== frame.contentWindow) return;
      if (data === "ready") frame.contentWindow.postMessage({ name, text, dark }, "*");
      else if (data?.name === name) ended(data);
    };
    const timer = setTimeout(() => ended({ error: t("diagram_slow") }), LONGEST);
    addEventListener("message", heard);
    document.body.append(frame);
  });
}

export async function drawDiagram(text, block, button) {
  const old = block.querySelector(".diagram");
  if (old) {
    old.remove();
    block.querySelector("pre").hidden = false;
    button.textContent = t("diagram_show");
    return;
  }
  button.disabled = true;
  let shown;
  try {
    const svg = await drawn(text, isDark());
    // As a picture it can neither run scripts nor load anything.
    const url = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
    const width = /viewBox="[-\d.]+ [-\d.]+ ([\d.]+)/.exec(svg)?.[1];
    shown = h("img", { src: url, width: width && Math.ceil(width), alt: t("diagram"), onload: () => URL.revokeObjectURL(url) });
    block.querySelector("pre").hidden = true;
    button.textContent = t("diagram_source");
  } catch (error) {
    shown = h("p", { className: "invalid", role: "status" }, t("diagram_failed", { problem: error.message.split("\n")[0] }));
  }
  block.append(h("div", { className: "diagram" }, shown));
  button.disabled = false;
}
