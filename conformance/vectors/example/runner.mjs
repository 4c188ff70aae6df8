// An example runner for `plumbline vectors`: streams of chat completions, and the parser of one dialect, hermes.
//
//     plumbline vectors --run "node conformance/vectors/example/runner.mjs" streams/chat parsers/hermes
import { createInterface } from "node:readline";
const SECTION = /<tool_call>\s*(\{[\s\S]*?\})\s*<\/tool_call>/g;

function parse({ pieces, opened, tools }) {
  let [text, reasoning] = [opened + pieces.join(""), ""];
  const end = text.indexOf("</think>");
  if (text.trimStart().startsWith("<think>")) {
    reasoning = text.slice(text.indexOf("<think>") + 7, end < 0 ? undefined : end);
    text = end < 0 ? "" : text.slice(end + 8);
  }
  const calls = [];
  const content = text.replace(SECTION, (section, json) => {
    try {
      const { name, arguments: given = {} } = JSON.parse(json);
      if (typeof given !== "object" || !tools.some((tool) => tool.function.name === name)) return section;
      // The text of the arguments, because numbers of JavaScript are not precise enough.
      const at = json.indexOf("{", 1);
      calls.push({ name, arguments: at < 0 ? "{}" : json.slice(at, json.lastIndexOf("}")).trim() });
      return "";
    } catch {
      return section;
    }
  });
  return { message: { reasoning, content, calls } };
}

function fold({ stream }) {
  const folded = { content: "", calls: [], finish_reason: null, usage: null };
  for (const block of stream.split("\n\n")) {
    const data = block.split("\n").find((line) => line.startsWith("data:"))?.slice(5).trim();
    if (!data || data === "[DONE]") continue;
    const chunk = JSON.parse(data);
    folded.usage = chunk.usage ?? folded.usage;
    for (const { delta, finish_reason } of chunk.choices) {
      folded.content += delta.content ?? "";
      folded.finish_reason = finish_reason ?? folded.finish_reason;
      for (const { index, id, function: part } of delta.tool_calls ?? []) {
        folded.calls[index] ??= { id, name: part.name, arguments: "" };
        folded.calls[index].arguments += part.arguments;
      }
    }
  }
  return { folded };
}

function answer(question) {
  if ("hello" in question) return { name: "example in JavaScript", version: process.version };
  if (question.suite === "streams" && question.api === "chat") return fold(question);
  if (question.suite === "parsers" && question.dialect.tool?.name === "hermes") return parse(question);
  return { skipped: "the example does not answer such questions" };
}

for await (const line of createInterface({ input: process.stdin })) {
  const question = JSON.parse(line);
  try {
    console.log(JSON.stringify(answer(question)));
  } catch (error) { // A client that throws at a broken stream has noticed it.
    console.log(JSON.stringify(question.suite === "streams" ? { broken: [`${error}`] } : { error: `${error}` }));
  }
}
