// Draw what the page sends to this frame, and send the picture back.

addEventListener("message", async ({ source, data: { name, text, dark } }) => {
  const { mermaid } = globalThis;
  mermaid.initialize({ startOnLoad: false, securityLevel: "strict", htmlLabels: false, flowchart: { htmlLabels: false },
    theme: dark ? "dark" : "neutral", maxTextSize: 50_000, suppressErrorRendering: true });
  try {
    const { svg } = await mermaid.render(`diagram-${name}`, text);
    source.postMessage({ name, svg }, "*");
  } catch (error) {
    source.postMessage({ name, error: String(error.message || error) }, "*");
  }
});
parent.postMessage("ready", "*");
