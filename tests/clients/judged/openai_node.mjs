// Hold the official client for JavaScript against every legal answer.

import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";
import { model, same, take } from "./taking.mjs";

const messages = [{ role: "user", content: "hi" }];
const client = (baseURL) => new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 20_000 });
const parameters = { type: "object", properties: {} };
const tools = ({ tool }) => [{ type: "function", function: { name: tool, parameters } }];

async function chat(url, expected) {
  const answer = await client(url).chat.completions.create({ model, messages });
  same(answer.choices[0].message.content, expected.text);
  same(answer.usage.prompt_tokens, expected.prompt_tokens);
}

async function chatStream(url, expected) {
  const stream = client(url).chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  const answer = await stream.finalChatCompletion();
  same([text, answer.choices[0].message.content], [expected.text, expected.text]);
  same(answer.usage.completion_tokens, expected.completion_tokens);
}

async function chatCall(url, expected) {
  const answer = await client(url).chat.completions.create({ model, messages, tools: tools(expected) });
  const [call] = answer.choices[0].message.tool_calls;
  same([call.function.name, JSON.parse(call.function.arguments)], [expected.tool, expected.arguments]);
}

async function chatCallStream(url, expected) {
  const stream = client(url).chat.completions.stream({ model, messages, tools: tools(expected) });
  const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  same([call.function.name, JSON.parse(call.function.arguments)], [expected.tool, expected.arguments]);
}

async function response(url, expected) {
  same((await client(url).responses.create({ model, input: "hi" })).output_text, expected.text);
}

async function responseStream(url, expected) {
  const stream = client(url).responses.stream({ model, input: "hi" });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  const answer = await stream.finalResponse();
  same([text, answer.output_text], [expected.text, expected.text]);
}

async function responseCallStream(url, expected) {
  const named = [{ type: "function", name: expected.tool, parameters, strict: false }];
  const stream = client(url).responses.stream({ model, input: "hi", tools: named });
  const [call] = (await stream.finalResponse()).output;
  same([call.name, JSON.parse(call.arguments)], [expected.tool, expected.arguments]);
}

async function responseSocket(url, expected) {
  const socket = new ResponsesWS(client(url));
  let text = "";
  await new Promise((resolve, reject) => {
    socket.on("error", reject);
    socket.on("event", (event) => {
      if (event.type === "response.output_text.delta") text += event.delta;
      if (event.type === "response.completed") resolve();
    });
    socket.send({ type: "response.create", model, input: "hi" });
  });
  socket.close();
  same(text, expected.text);
}

await take([
  chat, chatStream, chatCall, chatCallStream, response, responseStream, responseCallStream, responseSocket,
]);
