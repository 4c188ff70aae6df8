// The four APIs: write a request from a conversation, and fold the events of an answer.
//
// An answer is { text, thinking, calls, tokens, finish, usage, error } and what the next request needs of it.

import { t } from "./texts.js";

const parse = (text) => { try { return JSON.parse(text); } catch { return text; } };
const compact = (object) =>
  Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined && value !== null));

export const emptyAnswer = () => ({
  text: "", thinking: "", summary: "", signature: "", calls: [], tokens: [], finish: null, usage: null, error: null, response: null,
});

function constraint(format, names) {
  if (["text", undefined].includes(format.kind)) return {};
  const value = names[format.kind];
  if (!value) throw new Error(t("format_unknown", { name: format.kind }));
  return value(format.kind === "json_schema" ? JSON.parse(format.value) : format.value);
}

const structured = (name) => (value) => ({ structured_outputs: { [name]: value } });
const grammars = { regex: structured("regex"), grammar: structured("grammar") };
const named = (schema) => ({ type: "json_schema", name: "answer", strict: true, schema });

function token(entry, alternatives) {
  return { text: entry.token, logprob: entry.logprob, top: alternatives.map(({ token, logprob }) => [token, logprob]) };
}

const chat = {
  label: "Chat", path: "/v1/chat/completions", logprobs: true,
  build({ nodes, system, tools, toolChoice, format, logprobs }) {
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const node of nodes) {
      if (node.role === "tool") messages.push({ role: "tool", tool_call_id: node.call, content: node.text });
      else if (node.role === "assistant") messages.push(compact({
        role: "assistant", content: node.answer.text || (node.answer.calls.length ? null : ""),
        reasoning_content: node.answer.thinking || null,
        tool_calls: node.answer.calls.length ? node.answer.calls.map(({ id, name, input }) =>
          ({ id, type: "function", function: { name, arguments: input } })) : null,
      }));
      else messages.push({ role: "user", content: !node.images?.length ? node.text : [
        ...node.images.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text: node.text },
      ] });
    }
    return compact({
      messages, stream: true, stream_options: { include_usage: true },
      tools: tools.length ? tools.map((tool) => ({ type: "function", function: tool })) : null,
      tool_choice: tools.length && toolChoice !== "auto" ? toolChoice : null,
      ...(logprobs ? { logprobs: true, top_logprobs: 5 } : {}),
      ...constraint(format, {
        json_object: () => ({ response_format: { type: "json_object" } }),
        json_schema: (schema) => {
          const { type, ...given } = named(schema);
          return { response_format: { type, json_schema: given } };
        },
        ...grammars,
      }),
    });
  },
  fold(answer, { json }) {
    if (!json) return;
    if (json.error) answer.error = json.error;
    if (json.usage) answer.usage = json.usage;
    const choice = json.choices?.find((each) => each.index === 0); // The page shows the first of `n`.
    if (!choice) return;
    const delta = choice.delta || choice.message || {};
    answer.text += delta.content || "";
    answer.thinking += delta.reasoning_content ?? delta.reasoning ?? "";
    for (const call of delta.tool_calls || []) {
      const found = (answer.calls[call.index ?? answer.calls.length] ??= { id: "", name: "", input: "" });
      found.id ||= call.id || "";
      found.name ||= call.function?.name || "";
      found.input += call.function?.arguments || "";
    }
    for (const entry of choice.logprobs?.content || []) answer.tokens.push(token(entry, entry.top_logprobs || []));
    answer.finish = choice.finish_reason || answer.finish;
  },
};

const completions = {
  label: "Completions", path: "/v1/completions", logprobs: true,
  build({ nodes, format, logprobs }) {
    return {
      prompt: nodes.map((node) => node.answer?.text ?? node.text).join(""),
      max_tokens: 256, stream: true, stream_options: { include_usage: true },
      ...(logprobs ? { logprobs: 5 } : {}),
      ...constraint(format, { json_schema: structured("json"), ...grammars }),
    };
  },
  fold(answer, { json }) {
    if (!json) return;
    if (json.error) answer.error = json.error;
    if (json.usage) answer.usage = json.usage;
    const choice = json.choices?.find((each) => each.index === 0); // The page shows the first of `n`.
    if (!choice) return;
    answer.text += choice.text || "";
    answer.finish = choice.finish_reason || answer.finish;
    choice.logprobs?.tokens.forEach((text, place) => answer.tokens.push({
      text, logprob: choice.logprobs.token_logprobs[place],
      top: Object.entries(choice.logprobs.top_logprobs?.[place] || {}).sort((one, other) => other[1] - one[1]),
    }));
  },
};

const responses = {
  label: "Responses", path: "/v1/responses", logprobs: true,
  build({ nodes, system, tools, toolChoice, format, logprobs, stores }) {
    // Continue the newest stored response; what came before it is in the store of the server.
    const last = stores ? nodes.findLastIndex((node) => node.answer?.response && node.answer.finish) : -1;
    const input = nodes.slice(last + 1).flatMap((node) => {
      if (node.role === "tool") return [{ type: "function_call_output", call_id: node.call, output: node.text }];
      if (node.role === "assistant") return [
        ...(node.answer.text ? [{ role: "assistant", content: node.answer.text }] : []),
        ...node.answer.calls.map(({ id, name, input }) =>
          ({ type: "function_call", call_id: id, name, arguments: input })),
      ];
      return [{ role: "user", content: !node.images?.length ? node.text : [
        ...node.images.map((url) => ({ type: "input_image", image_url: url, detail: "auto" })),
        { type: "input_text", text: node.text },
      ] }];
    });
    return compact({
      input, stream: true, store: stores, instructions: system || null,
      previous_response_id: last < 0 ? null : nodes[last].answer.response,
      tools: tools.length ? tools.map((tool) => ({ type: "function", ...tool })) : null,
      tool_choice: tools.length && toolChoice !== "auto" ? toolChoice : null,
      ...(logprobs ? { include: ["message.output_text.logprobs"], top_logprobs: 5 } : {}),
      ...constraint(format, {
        json_object: () => ({ text: { format: { type: "json_object" } } }),
        json_schema: (schema) => ({ text: { format: named(schema) } }),
        ...grammars,
      }),
    });
  },
  fold(answer, { json }) {
    if (!json) return;
    const item = json.item || {};
    switch (json.type) {
      case "response.output_text.delta":
        answer.text += json.delta;
        for (const entry of json.logprobs || []) answer.tokens.push(token(entry, entry.top_logprobs || []));
        break;
      case "response.refusal.delta": answer.text += json.delta; break;
      case "response.reasoning_text.delta": answer.thinking += json.delta; break;
      case "response.reasoning_summary_text.delta": answer.summary += json.delta; break;
      case "response.output_item.added":
        if (item.type === "function_call") answer.calls.push({ item: item.id, id: item.call_id, name: item.name, input: "" });
        break;
      case "response.function_call_arguments.delta":
        answer.calls.find((call) => call.item === json.item_id).input += json.delta;
        break;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        Object.assign(answer, { usage: json.response.usage, response: json.response.id, error: json.response.error });
        answer.finish = json.response.incomplete_details?.reason || json.response.status;
        break;
      case "error": answer.error = json.error || json;
    }
  },
};

const messages = {
  label: "Messages", path: "/v1/messages", logprobs: false,
  build({ nodes, system, tools, toolChoice, format }) {
    const written = [];
    const add = (role, blocks) => {
      if (written.at(-1)?.role === role) written.at(-1).content.push(...blocks);
      else written.push({ role, content: blocks });
    };
    for (const node of nodes) {
      if (node.role === "tool") add("user", [{ type: "tool_result", tool_use_id: node.call, content: node.text }]);
      else if (node.role === "user") add("user", [
        ...(node.images || []).map((url) => ({ type: "image", source: {
          type: "base64", media_type: url.slice(5, url.indexOf(";")), data: url.slice(url.indexOf(",") + 1) } })),
        ...(node.text ? [{ type: "text", text: node.text }] : []),
      ]);
      else add("assistant", [
        ...(node.answer.signature
          ? [{ type: "thinking", thinking: node.answer.thinking, signature: node.answer.signature }] : []),
        ...(node.answer.text ? [{ type: "text", text: node.answer.text }] : []),
        ...node.answer.calls.map(({ id, name, input }) => ({ type: "tool_use", id, name, input: parse(input || "{}") })),
      ]);
    }
    return compact({
      max_tokens: 1024, messages: written, stream: true, system: system || null,
      tools: tools.length ? tools.map(({ name, description, parameters, strict }) =>
        compact({ name, description, input_schema: parameters, strict })) : null,
      tool_choice: tools.length && toolChoice !== "auto" ? { type: toolChoice === "required" ? "any" : "none" } : null,
      ...constraint(format, {
        json_schema: (schema) => ({ output_config: { format: { type: "json_schema", schema } } }),
      }),
    });
  },
  fold(answer, { json }) {
    if (!json) return;
    const delta = json.delta || {};
    if (json.type === "message_start") answer.usage = json.message.usage;
    if (json.type === "content_block_start" && json.content_block.type === "tool_use") {
      answer.calls.push({ id: json.content_block.id, name: json.content_block.name, input: "" });
    }
    if (json.type === "content_block_delta") {
      answer.text += delta.text || "";
      answer.thinking += delta.thinking || "";
      answer.signature += delta.signature || "";
      if (delta.partial_json) answer.calls.at(-1).input += delta.partial_json;
    }
    if (json.type === "message_delta") {
      answer.finish = delta.stop_reason;
      answer.usage = { ...answer.usage, ...json.usage };
    }
    if (json.type === "error") answer.error = json.error;
  },
};

export const APIS = { chat, completions, responses, messages };

export function fold(api, events, count = events.length) {
  const answer = emptyAnswer();
  for (const event of events.slice(0, count)) APIS[api].fold(answer, event);
  return answer;
}

// Read a stored response and its input as messages to continue from.
export function imported(response, items) {
  const written = (content) =>
    typeof content === "string" ? content : (content || []).map((part) => part.text || "").join("");
  const nodes = items.flatMap((item) => {
    if (item.type === "function_call_output") return [{ role: "tool", call: item.call_id, text: written(item.output) }];
    if (item.role === "user") return [{ role: "user", text: written(item.content) }];
    if (item.role !== "assistant" && item.type !== "function_call") return [];
    const calls = item.type === "function_call" ? [{ id: item.call_id, name: item.name, input: item.arguments }] : [];
    return [{ role: "assistant", answer: { ...emptyAnswer(), text: written(item.content), calls } }];
  });
  const answer = { ...emptyAnswer(), response: response.id, finish: response.status, usage: response.usage };
  for (const item of response.output) {
    if (item.type === "message") answer.text += written(item.content);
    if (item.type === "reasoning") answer.thinking += written(item.content) || written(item.summary);
    if (item.type === "function_call") answer.calls.push({ id: item.call_id, name: item.name, input: item.arguments });
  }
  return [...nodes, { role: "assistant", answer }];
}
