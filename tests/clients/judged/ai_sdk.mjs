// Hold Vercel's AI SDK against every legal answer, over both APIs.

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, streamText, tool } from "ai";
import { model, same, take } from "./taking.mjs";

const inputSchema = jsonSchema({ type: "object", properties: {}, additionalProperties: true });
const tools = (expected) => ({ [expected.tool]: tool({ description: "The weather", inputSchema }) });
const both = (baseURL) => {
  const openai = createOpenAI({ baseURL, apiKey: "none" });
  return [openai.chat(model), openai.responses(model)];
};

async function text(which, url, expected) {
  const found = await generateText({ model: both(url)[which], prompt: "hi", maxRetries: 0 });
  same(found.text, expected.text);
  same(found.usage.inputTokens, expected.prompt_tokens);
}

async function textStream(which, url, expected) {
  let failed;
  const onError = ({ error }) => (failed = error);
  const found = streamText({ model: both(url)[which], prompt: "hi", maxRetries: 0, onError });
  let seen = "";
  for await (const part of found.textStream) seen += part;
  if (failed) throw failed;
  same(seen, expected.text);
  same((await found.usage).outputTokens, expected.completion_tokens);
}

async function callStream(which, url, expected) {
  let failed;
  const onError = ({ error }) => (failed = error);
  const asked = { prompt: "hi", maxRetries: 0, tools: tools(expected), onError };
  const found = streamText({ model: both(url)[which], ...asked });
  await found.consumeStream({ onError });
  if (failed) throw failed;
  const [call] = await found.toolCalls;
  same([call.toolName, call.input], [expected.tool, expected.arguments]);
}

const uses = [text, textStream, callStream].flatMap((use) =>
  ["chat", "response"].map((api, which) => {
    const bound = (url, expected) => use(which, url, expected);
    Object.defineProperty(bound, "name", { value: `${api} ${use.name}` });
    return bound;
  }),
);
await take(uses);
