"""Faults of chat completions and of completions."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from field_faults.changes import (
    Event,
    Json,
    Row,
    calls_in,
    deltas,
    each_choice,
    ended,
    headers,
    streamed,
    whole,
)

__all__ = ["CHAT"]

NUMBERS = count()
MARKUP = '<tool_call>\n{"name": "get_weather"}\n</tool_call>'


def _stops(choice: Json, _: Json) -> None:
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "stop"


def _singular(choice: Json, _: Json) -> None:
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "tool_call"


def _first_index(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        call["index"] = 0


def _no_index(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        del call["index"]


def _objects(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        function = call.get("function") or {}
        try:
            function["arguments"] = json.loads(function["arguments"])
        except (KeyError, ValueError):
            continue


def _new_ids(choice: Json, chunk: Json) -> None:
    chunk["id"] = f"chatcmpl-{next(NUMBERS)}"


def _twice_finished(events: list[Event], _: Json) -> list[Event]:
    found = []
    for name, data in events:
        found.append((name, data))
        if isinstance(data, dict) and any(choice.get("finish_reason") for choice in data["choices"]):
            found.append((name, data))
    return found


def _last_finished(events: list[Event], asked: Json) -> None:
    if (asked.get("n") or 1) > 1:
        for _, data in events:
            for choice in data["choices"] if isinstance(data, dict) else ():
                if choice["index"] == 0:
                    choice["finish_reason"] = None


def _no_usage(events: list[Event], _: Json) -> list[Event]:
    return [one for one in events if one[1] == "[DONE]" or one[1]["choices"]]


def _busy_usage(events: list[Event], _: Json) -> None:
    for _kind, data in events:
        if isinstance(data, dict) and not data["choices"]:
            data["choices"] = [{"index": 0, "delta": {}, "finish_reason": None, "logprobs": None}]


def _empty_reason(choice: Json, _: Json) -> None:
    if choice["finish_reason"] is None:
        choice["finish_reason"] = ""


def _eos(choice: Json, _: Json) -> None:
    if choice["finish_reason"] == "stop":
        choice["finish_reason"] = "eos_token"


def _no_logprobs(choice: Json, _: Json) -> None:
    choice["logprobs"] = None


def _more_tops(choice: Json, _: Json) -> None:
    for entry in (choice.get("logprobs") or {}).get("content") or ():
        entry["top_logprobs"] = [*entry["top_logprobs"], *({"token": f"z{n}", "logprob": -20.0, "bytes": None} for n in range(3))]  # fmt: skip  # noqa: E501


def _with_stop(choice: Json, asked: Json) -> None:
    stops = asked.get("stop") or []
    if choice["finish_reason"] == "stop" and stops and choice["message"]["content"] is not None:
        choice["message"]["content"] += stops if isinstance(stops, str) else stops[0]


def _roles(choice: Json, _: Json) -> None:
    choice["delta"]["role"] = "assistant"


def _without_end(events: list[Event], _: Json) -> list[Event]:
    return [one for one in events if one[1] != "[DONE]"]


def _quoted_end(events: list[Event], _: Json) -> list[Event]:
    return [*((name, data) for name, data in events if data != "[DONE]"), (None, "DONE")]


def _milliseconds(answer: Json, _: Json) -> None:
    answer["created"] *= 1000


def _float(answer: Json, _: Json) -> None:
    answer["created"] += 0.5


def _total(answer: Json, _: Json) -> None:
    answer["usage"]["total_tokens"] = answer["usage"]["completion_tokens"]


def _one_more(answer: Json, _: Json) -> None:
    answer["usage"]["completion_tokens"] += 1
    answer["usage"]["total_tokens"] += 1


def _uncounted_prompt(answer: Json, _: Json) -> None:
    usage = answer["usage"]
    usage.update(prompt_tokens=0, total_tokens=usage["completion_tokens"])


def _one_choice(answer: Json, _: Json) -> None:
    del answer["choices"][1:]


def _calls_anyway(answer: Json, asked: Json) -> None:
    if asked.get("tool_choice") == "none" and asked.get("tools"):
        call = {"id": "call_9", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        for choice in answer["choices"]:
            choice["message"].update(content=None, tool_calls=[call])
            choice["finish_reason"] = "tool_calls"


def _text_instead(answer: Json, asked: Json) -> None:
    if asked.get("tool_choice") == "required":
        for choice in answer["choices"]:
            choice["message"].pop("tool_calls", None)
            choice["message"]["content"] = "I would call a tool."
            choice["finish_reason"] = "stop"


def _prose(choice: Json, asked: Json) -> None:
    if (asked.get("response_format") or {}).get("type") == "json_schema" and choice["message"]["content"]:
        choice["message"]["content"] = f"Sure! Here it is: {choice['message']['content']}"


def _fenced(choice: Json, asked: Json) -> None:
    if (asked.get("response_format") or {}).get("type", "text") != "text" and choice["message"]["content"]:
        choice["message"]["content"] = f"```json\n{choice['message']['content']}\n```"


def _thinks_aloud(choice: Json, _: Json) -> None:
    thought = choice["message"].pop("reasoning_content", None)
    if thought:
        choice["message"]["content"] = f"<think>{thought}</think>{choice['message']['content']}"


def _markup(choice: Json, _: Json) -> None:
    if calls_in(choice):
        choice["message"]["content"] = MARKUP


def _no_call_id(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        call["id"] = ""


def _same_call_id(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        call["id"] = "call_0"


def _named_again(events: list[Event], _: Json) -> None:
    names: dict[tuple[int, int], str] = {}
    for _kind, data in events:
        for choice in data["choices"] if isinstance(data, dict) else ():
            for call in calls_in(choice):
                place = choice["index"], call["index"]
                if function := call.get("function"):
                    function["name"] = names.setdefault(place, function.get("name", ""))


def _replaced(choice: Json, _: Json) -> None:
    content = choice["delta"].get("content")
    if content and not content.isascii():
        choice["delta"]["content"] = "".join(one if ord(one) < 0x2000 else "\ufffd" for one in content)


def _encoded_twice(events: list[Event], _: Json) -> list[Event]:
    return [(name, data if data == "[DONE]" else json.dumps(data)) for name, data in events]


def _is_stream(exchange: Any) -> bool:
    return exchange.status == 200 and b"data: " in exchange.body and "/chat/" in exchange.url


def _refuses(exchange: Any) -> bool:
    return exchange.status in (400, 422) and exchange.url.endswith("/chat/completions")


def _no_echo(answer: Json, asked: Json) -> None:
    prompt = asked.get("prompt")
    if asked.get("echo") and isinstance(prompt, str):
        for choice in answer["choices"]:
            choice["text"] = choice["text"].removeprefix(prompt)


def _chat_logprobs(choice: Json, _: Json) -> None:
    lists = choice.get("logprobs")
    if lists:
        pairs = zip(lists["tokens"], lists["token_logprobs"], strict=True)
        content = [
            {"token": one, "logprob": value, "bytes": None, "top_logprobs": []} for one, value in pairs
        ]
        choice["logprobs"] = {"content": content}


def _first_prompt(answer: Json, asked: Json) -> None:
    if isinstance(asked.get("prompt"), list) and len(asked["prompt"]) > 1:
        del answer["choices"][1:]


def _offsets(choice: Json, _: Json) -> None:
    if choice.get("logprobs"):
        choice["logprobs"]["text_offset"] = [0] * len(choice["logprobs"]["text_offset"])


def _as_chat(answer: Json, _: Json) -> None:
    answer["object"] = "chat.completion"


def _error(message: Any) -> bytes:
    return json.dumps(message).encode()


CHAT: tuple[Row, ...] = (
    ("python-genai#2868", "streamed calls end with `stop`", deltas(_stops)),
    ("vllm#25054", "calls end with `stop`", whole("chat", each_choice(_stops))),
    ("litellm#37792", "parallel calls all have index 0", deltas(_first_index)),
    ("litellm#37792", "arguments of streams are objects", deltas(_objects)),
    ("", "arguments are objects", whole("chat", each_choice(_objects))),
    ("litellm#37792", "each chunk has an id of its own", deltas(_new_ids)),
    ("mlx-lm#782", "the reason is called `tool_call`", whole("chat", each_choice(_singular))),
    ("sglang#8417", "two chunks finish a choice", streamed("chat", _twice_finished)),
    ("sglang#8417", "only the last of several choices finishes", streamed("chat", _last_finished)),
    ("ollama#7881", "calls in streams have no index", deltas(_no_index)),
    ("omlx#61", "no usage in streams", streamed("chat", _no_usage)),
    ("", "the chunk of the usage has a choice", streamed("chat", _busy_usage)),
    ("", "the reason is empty before the end", deltas(_empty_reason)),
    ("", "the reason is `eos_token`", whole("chat", each_choice(_eos))),
    ("ollama#16117", "no log probabilities", whole("chat", each_choice(_no_logprobs))),
    ("ollama#16117", "no log probabilities in streams", deltas(_no_logprobs)),
    ("", "more alternatives than asked for", whole("chat", each_choice(_more_tops))),
    ("LightLLM#130", "the text has the stop string", whole("chat", each_choice(_with_stop))),
    ("", "the role in every chunk", deltas(_roles)),
    ("", "no [DONE]", streamed("chat", _without_end)),
    ("", "the end is a JSON string", streamed("chat", _quoted_end)),
    ("", "milliseconds as the time", whole("chat", _milliseconds)),
    ("", "a fraction of a second as the time", whole("chat", _float)),
    ("", "the total counts the answer alone", whole("chat", _total)),
    ("", "one token more is counted", whole("chat", _one_more)),
    ("", "a cached prompt has no tokens", whole("chat", _uncounted_prompt)),
    ("", "one choice for several", whole("chat", _one_choice)),
    ("", "calls despite `none`", whole("chat", _calls_anyway)),
    ("", "text despite `required`", whole("chat", _text_instead)),
    ("", "words before a document", whole("chat", each_choice(_prose))),
    ("", "a document between fences", whole("chat", each_choice(_fenced))),
    ("vllm#14170", "thoughts within the text", whole("chat", each_choice(_thinks_aloud))),
    ("", "markup of calls as text", whole("chat", each_choice(_markup))),
    ("", "an empty id of calls", whole("chat", each_choice(_no_call_id))),
    ("", "one id for all calls", whole("chat", each_choice(_same_call_id))),
    ("", "the name in every fragment", streamed("chat", _named_again)),
    ("", "characters cut in streams", deltas(_replaced)),
    ("", "chunks are encoded twice", streamed("chat", _encoded_twice)),
    ("", "streams are called JSON", headers(_is_stream, "content-type", "application/json")),
    ("", "streams are called text", headers(_is_stream, "content-type", "text/plain")),
    ("", "refusals have status 200", ended(_refuses, status=200)),
    (
        "",
        "refusals as a framework writes them",
        ended(_refuses, status=422, content=_error({"detail": [{"loc": ["body"], "msg": "x", "type": "y"}]})),
    ),
    ("", "refusals are a text", ended(_refuses, content=b"Bad Request")),
    ("", "what is wrong is a failure", ended(_refuses, status=500)),
    ("", "no echo", whole("completions", _no_echo)),
    ("", "log probabilities as in chat", whole("completions", each_choice(_chat_logprobs))),
    ("", "one answer for several prompts", whole("completions", _first_prompt)),
    ("", "all offsets are 0", whole("completions", each_choice(_offsets))),
    ("", "completions are called chat", whole("completions", _as_chat)),
)
