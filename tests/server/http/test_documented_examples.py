# ruff: noqa: E501 - a table reads best with one case a line
"""Requests of other servers' documents are answered, or refused by the name of the field.

The rows are the requests that the documents of these servers show, for this server's model and with short answers:
vLLM (OpenAI-compatible server, structured outputs, reasoning, tool calling), SGLang (OpenAI APIs, structured outputs,
separate reasoning, adapters), transformers serve, TabbyAPI (usage, templates, tools) and llama.cpp (README of its server).
"""

from __future__ import annotations

from typing import Any

import pytest
from support.models import served, tiny_engine
from support.servers.asgi import serving

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Classify this sentiment: vLLM is wonderful!"}],
    "max_tokens": 8,
}
LIMERICK = {
    "messages": [
        {"role": "system", "content": "You help people with their requests."},
        {"role": "user", "content": "Write a limerick about python exceptions"},
    ],
    "max_tokens": 8,
}
CAR = {
    "type": "object",
    "properties": {"brand": {"type": "string"}, "car_type": {"enum": ["sedan", "SUV"]}},
    "required": ["brand", "car_type"],
}
SQL = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City and state, e.g., 'San Francisco, CA'"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location", "unit"],
        },
    },
}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/boardwalk.jpg"}}

EBNF = 'root ::= city " is the capital of " country\ncity ::= "Rome" | "Graz"\ncountry ::= "Italy" | "Styria"'
HISTORY = [
    {"role": "system", "content": "You are a historian and answer in one sentence."},
    {"role": "user", "content": "Tell me about Rome"},
    {"role": "assistant", "content": "It began on seven hills."},
    {"role": "user", "content": "What did they build?"},
]
TAGS = {
    "structures": [{"begin": "<function=get_weather>", "schema": CAR, "end": "</function>"}],
    "triggers": ["<function="],
}

ANSWERED: list[tuple[str, str, dict[str, Any]]] = [
    ("vLLM: chat", CHAT, {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}),
    ("vLLM: text parts", CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 8}),
    ("vLLM: top_k in extra_body", CHAT, {**ASK, "top_k": 50}),
    ("vLLM: completion", TEXT, {"prompt": "A robot may not injure a human being", "max_tokens": 8}),
    ("vLLM: several prompts and logprobs", TEXT, {"prompt": ["Hello", "A robot"], "n": 2, "logprobs": 3, "max_tokens": 4}),
    ("vLLM: echo with prompt_logprobs", TEXT, {"prompt": "A robot", "echo": True, "prompt_logprobs": 1, "max_tokens": 4}),
    ("vLLM: guided choice", CHAT, {**ASK, "guided_choice": ["positive", "negative"]}),
    ("vLLM: choice", CHAT, {**ASK, "structured_outputs": {"choice": ["positive", "negative"]}}),
    ("vLLM: regex", CHAT, {**ASK, "structured_outputs": {"regex": r"\w+@\w+\.com\n"}, "stop": ["\n"]}),
    ("vLLM: JSON", CHAT, {**ASK, "structured_outputs": {"json": CAR}}),
    ("vLLM: response_format", CHAT, {**ASK, "response_format": {"type": "json_schema", "json_schema": {"name": "car-description", "schema": CAR}}}),
    ("vLLM: EBNF grammar", CHAT, {**ASK, "structured_outputs": {"grammar": SQL}}),
    ("vLLM: structural tag", CHAT, {**ASK, "structured_outputs": {"structural_tag": {"structures": [{"begin": "<function=get_weather>", "schema": CAR, "end": "</function>"}], "triggers": ["<function="]}}}),
    ("vLLM: tools", CHAT, {**ASK, "tools": [WEATHER], "tool_choice": "auto"}),
    ("vLLM: chat_template_kwargs", CHAT, {**ASK, "chat_template_kwargs": {"enable_thinking": False}}),
    ("vLLM: include_reasoning", CHAT, {**ASK, "include_reasoning": False}),
    ("vLLM: token ids", CHAT, {**ASK, "return_token_ids": True, "logprobs": True, "return_tokens_as_token_ids": True}),
    ("vLLM: beam search", TEXT, {"prompt": "A robot", "use_beam_search": True, "n": 2, "temperature": 0, "max_tokens": 3}),
    ("vLLM: continued message", CHAT, {"messages": [*ASK["messages"], {"role": "assistant", "content": "It is"}], "add_generation_prompt": False, "continue_final_message": True, "echo": True, "max_tokens": 4}),
    ("vLLM: responses", RESPONSES, {"input": "What is 9.11 or 9.8?", "max_output_tokens": 16}),
    ("vLLM: tokenize", "/tokenize", {"prompt": "Hello", "add_special_tokens": False, "return_token_strs": True}),
    ("vLLM: tokenize a chat", "/tokenize", {"messages": ASK["messages"], "add_generation_prompt": True}),
    ("vLLM: detokenize", "/detokenize", {"tokens": [1, 2, 3]}),
    ("SGLang: chat", CHAT, {**ASK, "temperature": 0}),
    ("SGLang: thinking by Qwen3's variable", CHAT, {**ASK, "chat_template_kwargs": {"enable_thinking": True}, "separate_reasoning": True}),
    ("SGLang: thinking by DeepSeek's variable", CHAT, {**ASK, "chat_template_kwargs": {"thinking": True}, "separate_reasoning": False}),
    ("SGLang: reasoning in one piece", CHAT, {**ASK, "stream_reasoning": False}),
    ("SGLang: logit_bias", CHAT, {**ASK, "temperature": 0.7, "logit_bias": {"30": 50, "31": -50, "32": 25}}),
    ("SGLang: a conversation with penalties", CHAT, {"messages": HISTORY, "temperature": 0.3, "max_tokens": 8, "top_p": 0.95, "presence_penalty": 0.2, "frequency_penalty": 0.2, "n": 1, "seed": 42}),
    ("SGLang: completion", TEXT, {"prompt": "List 3 capitals.", "temperature": 0, "max_tokens": 8, "n": 1, "stop": None}),
    ("SGLang: completion with stops", TEXT, {"prompt": "Write a story.", "temperature": 0.7, "max_tokens": 8, "top_p": 0.9, "stop": ["\n\n", "THE END"], "presence_penalty": 0.3, "frequency_penalty": 0.3, "n": 1, "seed": 123}),
    ("SGLang: completion with logit_bias", TEXT, {"prompt": "The best language is", "temperature": 0.7, "max_tokens": 8, "logit_bias": {"30": 75, "31": -100}}),
    ("SGLang: JSON by a schema", CHAT, {**ASK, "response_format": {"type": "json_schema", "json_schema": {"name": "car", "schema": CAR}}}),
    ("SGLang: EBNF", CHAT, {**ASK, "ebnf": EBNF}),
    ("SGLang: regex", CHAT, {**ASK, "regex": "(Rome|Graz)"}),
    ("SGLang: responses", RESPONSES, {"input": "Hello", "max_output_tokens": 16}),
    ("transformers: chat", CHAT, {**ASK, "temperature": 0.9}),
    ("transformers: completion", TEXT, {"prompt": "Once upon a time", "max_tokens": 8}),
    ("transformers: a stop in a completion", TEXT, {"prompt": "Once upon a time", "max_tokens": 8, "stop": ["\n"]}),
    ("transformers: responses", RESPONSES, {"instructions": "You are a helpful assistant.", "input": "Hello!", "temperature": 1.0, "max_output_tokens": 16}),
    ("transformers: responses with messages", RESPONSES, {"input": [{"role": "user", "content": "Hello!"}], "max_output_tokens": 16}),
    ("transformers: tools", CHAT, {**ASK, "tools": [WEATHER]}),
    ("TabbyAPI: completion", TEXT, {"prompt": "Once upon a time,", "max_tokens": 8, "min_p": 0.05, "repetition_penalty": 1.05}),
    ("TabbyAPI: template variables", CHAT, {**ASK, "template_vars": {"test_var": "hello!"}}),
    ("TabbyAPI: reasoning effort in template variables", CHAT, {**ASK, "chat_template_kwargs": {"reasoning_effort": "high"}}),
    ("TabbyAPI: tools", CHAT, {**ASK, "tools": [WEATHER], "tool_choice": "auto", "parallel_tool_calls": True}),
    ("TabbyAPI: JSON schema", CHAT, {**ASK, "json_schema": CAR}),
    ("TabbyAPI: response prefix", CHAT, {**ASK, "response_prefix": "Sure:"}),
    ("llama.cpp: completion", TEXT, {"prompt": "I believe the meaning of life is", "max_tokens": 8}),
    ("llama.cpp: chat", CHAT, LIMERICK),
    ("llama.cpp: JSON object", CHAT, {**ASK, "response_format": {"type": "json_object"}}),
    ("llama.cpp: JSON by a schema", CHAT, {**ASK, "response_format": {"type": "json_object", "schema": {"type": "string", "minLength": 10, "maxLength": 100}}}),
    ("llama.cpp: json_schema", TEXT, {"prompt": "a", "max_tokens": 8, "json_schema": {"items": {"type": "string"}, "minItems": 10, "maxItems": 100, "type": "array"}}),
    ("llama.cpp: grammar", TEXT, {"prompt": "a", "max_tokens": 8, "grammar": 'root ::= "yes" | "no"'}),
    ("llama.cpp: logit_bias as pairs", TEXT, {"prompt": "a", "max_tokens": 4, "logit_bias": [[30, 1.0], [31, False]]}),
    ("llama.cpp: sampling", TEXT, {"prompt": "a", "max_tokens": 4, "temperature": 0.8, "dynatemp_range": 0.1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 0.9, "repeat_penalty": 1.1, "repeat_last_n": 64, "dry_multiplier": 0.8, "dry_penalty_last_n": 64, "xtc_probability": 0.5, "seed": 42, "n_probs": 2}),
    ("llama.cpp: mirostat", TEXT, {"prompt": "a", "max_tokens": 4, "mirostat": 2, "mirostat_tau": 5.0, "mirostat_eta": 0.1}),
    ("llama.cpp: samplers", TEXT, {"prompt": "a", "max_tokens": 4, "samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]}),
    ("llama.cpp: cache and slot", TEXT, {"prompt": "a", "max_tokens": 4, "cache_prompt": True, "id_slot": -1}),
    ("llama.cpp: reasoning_effort", CHAT, {**LIMERICK, "reasoning_effort": "none"}),
    ("llama.cpp: responses", RESPONSES, {"instructions": "You are an assistant.", "input": "Write a limerick", "max_output_tokens": 16}),
    ("llama.cpp: input_tokens", "/v1/responses/input_tokens", {"input": "Write a limerick"}),
]  # fmt: skip

REFUSED: list[tuple[str, str, dict[str, Any], str | None]] = [
    ("vLLM: image", CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
    ("vLLM: processor arguments", CHAT, {**ASK, "mm_processor_kwargs": {"num_crops": 4}}, "mm_processor_kwargs"),
    ("vLLM: a template of the request", CHAT, {**ASK, "chat_template": "{{ messages }}"}, "chat_template"),
    ("vLLM: documents without a template for them", CHAT, {**ASK, "documents": [{"title": "a", "text": "b"}]}, "documents"),
    ("SGLang: a required tool of a model without a tool dialect", CHAT, {**ASK, "max_tokens": 64, "tools": [WEATHER], "tool_choice": "required"}, "tools"),
    ("SGLang: a named tool of a model without a tool dialect", CHAT, {**ASK, "max_tokens": 64, "tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, "tools"),
    ("SGLang: an adapter by its path", CHAT, {**ASK, "lora_path": "adapter_a"}, "lora_path"),
    ("SGLang: structural tag as a format", CHAT, {**ASK, "response_format": {"type": "structural_tag", **TAGS}}, "response_format"),
    ("transformers: image", CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}]}, "messages[0].content[1]"),
    ("transformers: audio", CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}]}, "messages[0].content[0]"),
    ("llama.cpp: text of tokenize", "/tokenize", {"content": "hello"}, "prompt"),
    ("llama.cpp: schema beside the type", CHAT, {**ASK, "response_format": {"type": "json_schema", "schema": CAR}}, "response_format.json_schema"),
    ("llama.cpp: n_predict", TEXT, {"prompt": "a", "n_predict": 128}, "n_predict"),
    ("llama.cpp: a slot", TEXT, {"prompt": "a", "id_slot": 1}, "id_slot"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), [pytest.param(*row[1:], id=row[0]) for row in ANSWERED])
async def test_a_documented_request_is_answered(path: str, body: dict[str, Any]) -> None:
    no_stream = {"use_beam_search", "prompt_logprobs"} & set(body) or path not in (CHAT, TEXT, RESPONSES)
    async with serving(served(tiny_engine())) as server:
        for mode in [{}] if no_stream else [{"stream": False}, {"stream": True}]:
            answer = await server.post(path, {"model": "test-model", **body, **mode})
            assert answer.status == 200, answer.body
            assert answer.header("x-plumbline-ignored") is None


@pytest.mark.parametrize(("path", "body", "param"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
async def test_a_documented_request_is_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    async with serving(served(tiny_engine())) as server:
        answer = await server.post(path, {"model": "test-model", **body})

    assert answer.status == 400, answer.body
    assert (answer.error["param"] or "").startswith(param), answer.error
