"""Faults that threads of public trackers describe: of parts that answers of several APIs share.

These are log probabilities, usage, documents, calls, errors, encodings, models and headers.
"""

from __future__ import annotations

import json
import math
from typing import Any

from mutants.mutations import changed, with_body

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

__all__ = ["PARTS", "entries", "of_errors", "of_models"]


def entries(choice: Json) -> list[Json]:
    """Return the entries of the tokens of a message or of a delta."""
    return (choice.get("logprobs") or {}).get("content") or []


def _as_completions(choice: Json, _: Json) -> None:
    if found := entries(choice):
        choice["logprobs"] = {
            "tokens": [one["token"] for one in found],
            "token_logprobs": [one["logprob"] for one in found],
            "top_logprobs": [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in found],
            "text_offset": [0 for _ in found],
        }


def _bytes_so_far(choice: Json, _: Json) -> None:
    so_far: list[int] = []
    for one in entries(choice):
        so_far = [*so_far, *(one["bytes"] or ())]
        one["bytes"] = so_far


def _probabilities(choice: Json, _: Json) -> None:
    for one in entries(choice):
        for entry in (one, *one["top_logprobs"]):
            entry["logprob"] = math.exp(entry["logprob"])


def _ascending(choice: Json, _: Json) -> None:
    for one in entries(choice):
        one["top_logprobs"].reverse()


def _null_logprobs(choice: Json, _: Json) -> None:
    choice["logprobs"] = None


def _doubled(choice: Json, _: Json) -> None:
    if found := entries(choice):
        choice["logprobs"]["content"] = [one for entry in found for one in (entry, entry)]


def _thoughts_apart(answer: Json, _: Json) -> None:
    usage = answer["usage"]
    thoughts = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    usage["completion_tokens"] -= thoughts


def _more_thoughts(answer: Json, _: Json) -> None:
    details = answer["usage"].get("completion_tokens_details") or {}
    answer["usage"]["completion_tokens_details"] = {
        **details,
        "reasoning_tokens": answer["usage"]["completion_tokens"] + 5,
    }


# Structured outputs and tools.


def _in_thoughts(choice: Json, asked: Json) -> None:
    if (asked.get("response_format") or {}).get("type", "text") != "text":
        message = choice["message"]
        message["reasoning_content"] = message["content"]
        message["content"] = ""


def _parsed(choice: Json, asked: Json) -> None:
    if (asked.get("response_format") or {}).get("type", "text") != "text":
        try:
            choice["message"]["content"] = json.loads(choice["message"]["content"])
        except (ValueError, TypeError):  # A cut document, or no text.
            return


def _empty_names(events: list[Event], _: Json) -> None:
    met: set[Any] = set()
    for _name, data in events:
        for choice in data["choices"] if isinstance(data, dict) else ():
            for call in calls_in(choice):
                place = (choice["index"], call["index"])
                if place in met and "function" in call:
                    call["function"]["name"] = ""
                met.add(place)


def _place_of_tool(events: list[Event], asked: Json) -> None:
    names = [
        (tool.get("function") or tool.get("custom") or {}).get("name") for tool in asked.get("tools") or ()
    ]
    places: dict[Any, int] = {}
    for _name, data in events:
        for choice in data["choices"] if isinstance(data, dict) else ():
            for call in calls_in(choice):
                key = (choice["index"], call["index"])
                name = (call.get("function") or {}).get("name")
                if name in names:
                    places.setdefault(key, names.index(name))
                call["index"] = places.get(key, call["index"])


def _no_type(events: list[Event], _: Json) -> None:
    for _name, data in events:
        for choice in data["choices"] if isinstance(data, dict) else ():
            for call in calls_in(choice):
                call.pop("type", None)


# Errors, encodings, models, headers.


def _refusal(exchange: Any) -> bool:
    return (
        400 <= exchange.status < 500
        and isinstance(exchange.json, dict)
        and isinstance(exchange.json.get("error"), dict)
    )


def of_errors(change: Any) -> Any:
    """Change the error objects of refusals, given the status."""

    def apply(exchange: Any) -> Any:
        if not _refusal(exchange) or exchange.method == "WEBSOCKET":
            return exchange
        found = json.loads(exchange.body)
        change(found["error"], exchange.status)
        return with_body(exchange, json.dumps(found).encode())

    return apply


def _number(error: Json, status: int) -> None:
    error["code"] = status


def _untyped(error: Json, _: int) -> None:
    error.pop("type", None)


def _wordless(error: Json, _: int) -> None:
    error["message"] = ""


def _streamed_refusal(exchange: Any) -> Any:
    asked = exchange.request_json
    if not _refusal(exchange) or not isinstance(asked, dict) or asked.get("stream") is not True:
        return exchange
    body = b"data: " + exchange.body + b"\n\ndata: [DONE]\n\n"
    kept = [(name, value) for name, value in exchange.headers if name.lower() != "content-type"]
    return with_body(
        changed(exchange, status=200, headers=[*kept, ("content-type", "text/event-stream")]), body
    )


def _json(exchange: Any) -> bool:
    return (
        exchange.method != "WEBSOCKET" and exchange.status == 200 and isinstance(exchange.json, dict | list)
    )


def _latin(exchange: Any) -> Any:
    if not _json(exchange):
        return exchange
    text = json.dumps(exchange.json, ensure_ascii=False)
    return exchange if text.isascii() else with_body(exchange, text.encode("latin-1", "replace"))


def _marked(exchange: Any) -> Any:
    return with_body(exchange, b"\xef\xbb\xbf" + exchange.body) if _json(exchange) else exchange


def _halves(events: list[Event], _: Json) -> list[Event]:
    found: list[Event] = []
    for name, data in events:
        choices = data["choices"] if isinstance(data, dict) else []
        text = choices[0]["delta"].get("content") if len(choices) == 1 else None
        wide = next((one for one in text or "" if ord(one) > 0xFFFF), None)
        if wide is None:
            found.append((name, data))
            continue
        code = ord(wide) - 0x10000
        high, low = chr(0xD800 + (code >> 10)), chr(0xDC00 + (code & 0x3FF))
        before, after = str(text).split(wide, 1)
        for part in (before + high, low + after):
            one = json.loads(json.dumps(data))
            one["choices"][0]["delta"]["content"] = part
            found.append((name, one))
    return found


def of_models(change: Any) -> Any:
    """Change the models of lists, and those that are read alone."""

    def apply(exchange: Any) -> Any:
        if exchange.method != "GET" or not exchange.path.startswith("/v1/models") or exchange.status != 200:
            return exchange
        found = json.loads(exchange.body)
        for model in found.get("data", [found]):
            change(model)
        return with_body(exchange, json.dumps(found).encode())

    return apply


def _dated(model: Json) -> None:
    model["created"] = "2026-06-01T00:00:00Z"


def _by_file(model: Json) -> None:
    model["id"] = f"/models/{model['id'].rpartition('/')[2]}.gguf"


def _ownerless(model: Json) -> None:
    model.pop("object", None)


def _slash(exchange: Any) -> bool:
    return exchange.method == "GET" and "/v1/models/" in exchange.url and exchange.status == 200


NOT_FOUND = json.dumps(
    {"error": {"message": "Not found.", "type": "invalid_request_error", "param": None, "code": None}}
).encode()


def _refused_stream(exchange: Any) -> bool:
    asked = exchange.request_json
    return _refusal(exchange) and isinstance(asked, dict) and asked.get("stream") is True


def _completions_chunks(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if isinstance(data, dict):
            data["object"] = "chat.completion.chunk"


def _last_usage_null(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if isinstance(data, dict) and data.get("usage"):
            data["usage"] = None


PARTS: tuple[Row, ...] = (
    (
        "llama-cpp-python#1787",
        "log probabilities as in completions",
        whole("chat", each_choice(_as_completions)),
    ),
    ("", "bytes of tokens are those so far", whole("chat", each_choice(_bytes_so_far))),
    (
        "llama-cpp-python#349",
        "probabilities instead of their logarithms",
        whole("chat", each_choice(_probabilities)),
    ),
    ("", "the least likely alternatives first", whole("chat", each_choice(_ascending))),
    (
        "llama.cpp#11346",
        "completions have no log probabilities",
        whole("completions", each_choice(_null_logprobs)),
    ),
    ("", "tokens of streams are listed twice", deltas(_doubled)),
    ("openai-python#2544", "thoughts are counted in the total only", whole("chat", _thoughts_apart)),
    ("", "more thoughts than tokens", whole("chat", _more_thoughts)),
    ("", "streams announce a usage that is null", streamed("chat", _last_usage_null)),
    ("lmstudio#1773", "documents in the thoughts", whole("chat", each_choice(_in_thoughts))),
    ("", "documents as objects", whole("chat", each_choice(_parsed))),
    ("lmstudio#649", "later fragments have an empty name", streamed("chat", _empty_names)),
    ("sglang#38198", "calls are numbered by their tools", streamed("chat", _place_of_tool)),
    ("", "calls of streams have no type", streamed("chat", _no_type)),
    ("vllm", "the code of errors is a number", of_errors(_number)),
    ("", "errors have no type", of_errors(_untyped)),
    ("", "errors have no words", of_errors(_wordless)),
    ("litellm#22793", "refusals of streams are streams", _streamed_refusal),
    (
        "",
        "refusals of streams are called streams",
        headers(_refused_stream, "content-type", "text/event-stream"),
    ),
    ("", "bodies in Latin-1", _latin),
    ("", "bodies begin with a byte order mark", _marked),
    ("", "halves of characters in two chunks", streamed("chat", _halves)),
    ("", "models were made on a date", of_models(_dated)),
    ("llama.cpp", "models have the names of files", of_models(_by_file)),
    ("", "models are not called models", of_models(_ownerless)),
    ("", "listed models cannot be read", ended(_slash, status=404, content=NOT_FOUND)),
    ("", "no ids of requests that are refused", headers(_refusal, "x-request-id", None)),
    ("", "no list of methods with a 405", headers(lambda one: one.status == 405, "allow", None)),
    ("", "chunks of completions are called chat", streamed("completions", _completions_chunks)),
)
