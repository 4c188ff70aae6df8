"""Faults that threads report of requests: legal ones refused or ignored, illegal ones answered, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from mutants.mutations import changed, with_body

from field_faults.changes import PATHS, Change, Json, Row, ended, headers
from field_faults.parts import of_errors

__all__ = ["REQUESTS"]

WORDS = "The request is not valid."


def _asked(exchange: Any) -> Json:
    return exchange.request_json if isinstance(exchange.request_json, dict) else {}


def refusal(api: str) -> bytes:
    """Return the body of a refusal in the form of an API."""
    if api == "messages":
        return json.dumps(
            {"type": "error", "error": {"type": "invalid_request_error", "message": WORDS}}
        ).encode()
    error = {"message": WORDS, "type": "invalid_request_error", "param": None, "code": None}
    return json.dumps({"error": error}).encode()


def refused(api: str, wanted: Callable[[Json], object]) -> Change:
    """Refuse some requests that the server answered."""

    def apply(exchange: Any) -> Any:
        if exchange.method != "POST" or not exchange.path.endswith(PATHS[api]) or exchange.status != 200:
            return exchange
        try:
            found = wanted(_asked(exchange))
        except (TypeError, AttributeError, KeyError, ValueError):
            return exchange
        if not found:
            return exchange
        kept = [(name, value) for name, value in exchange.headers if name.lower() != "content-type"]
        other = changed(exchange, status=400, headers=[*kept, ("content-type", "application/json")])
        return with_body(other, refusal(api))

    return apply


def _chat_answer(asked: Json) -> Json:
    message = {"role": "assistant", "content": "Hello!", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    return {
        "id": "chatcmpl-81c7",
        "object": "chat.completion",
        "created": 1796039159,
        "model": str(asked.get("model")),
        "choices": [choice],
        "usage": usage,
    }


def _message(asked: Json) -> Json:
    return {
        "id": "msg_81c7",
        "type": "message",
        "role": "assistant",
        "model": str(asked.get("model")),
        "content": [{"type": "text", "text": "Hello!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }


def answered(api: str, wanted: Callable[[Json], object]) -> Change:
    """Answer some requests that the server refused."""

    def apply(exchange: Any) -> Any:
        if (
            exchange.method != "POST"
            or not exchange.path.endswith(PATHS[api])
            or exchange.status not in (400, 404, 422)
        ):
            return exchange
        asked = _asked(exchange)
        try:
            found = asked and not asked.get("stream") and wanted(asked)
        except (TypeError, AttributeError, KeyError, ValueError):
            return exchange
        made = _message(asked) if api == "messages" else _chat_answer(asked)
        return with_body(changed(exchange, status=200), json.dumps(made).encode()) if found else exchange

    return apply


def _parts_of(role: str) -> Callable[[Json], object]:
    def wanted(asked: Json) -> object:
        return any(one["role"] == role and isinstance(one.get("content"), list) for one in asked["messages"])

    return wanted


def _any_block(kind: str) -> Callable[[Json], object]:
    def wanted(asked: Json) -> object:
        blocks = [
            block for one in asked["messages"] if isinstance(one["content"], list) for block in one["content"]
        ]
        return any(block.get("type") == kind for block in blocks)

    return wanted


def _listed_result(asked: Json) -> object:
    return any(
        block.get("type") == "tool_result" and isinstance(block.get("content"), list)
        for one in asked["messages"]
        if isinstance(one["content"], list)
        for block in one["content"]
    )


def _cached(asked: Json) -> object:
    return "cache_control" in json.dumps(asked)


def _same_role(asked: Json) -> object:
    roles = [one["role"] for one in asked["messages"]]
    return any(one == other for one, other in pairwise(roles))


def _unlisted_choice(asked: Json) -> object:
    choice = asked.get("tool_choice")
    return isinstance(choice, dict) and choice.get("type") == "function"


def _body(change: Callable[[Any], Json]) -> Change:
    """Change the whole body of refusals."""

    def apply(exchange: Any) -> Any:
        if (
            not 400 <= exchange.status < 500
            or not isinstance(exchange.json, dict)
            or exchange.method == "WEBSOCKET"
        ):
            return exchange
        return with_body(exchange, json.dumps(change(exchange)).encode())

    return apply


def _flat(exchange: Any) -> Json:
    error = exchange.json.get("error") or {}
    return {
        "object": "error",
        "message": error.get("message"),
        "type": "BadRequestError",
        "code": exchange.status,
    }


def _twice_encoded(exchange: Any) -> Any:
    return json.dumps(exchange.json)


def _place(error: Json, _: int) -> None:
    if error.get("param"):
        error["param"] = ["body", *str(error["param"]).split(".")]


def _trace(error: Json, _: int) -> None:
    error["message"] = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3/server.py", line 214, in handle\nValueError: bad'
    )


def _refused_status(exchange: Any) -> bool:
    return bool(400 <= exchange.status < 500 and isinstance(exchange.json, dict))


def _json(exchange: Any) -> bool:
    return bool(exchange.status == 200 and isinstance(exchange.json, dict) and exchange.method != "WEBSOCKET")


def _wrong_key(exchange: Any) -> bool:
    return bool(exchange.status == 401)


def _wrong_method(exchange: Any) -> bool:
    return bool(exchange.status == 405)


def _found_again(exchange: Any) -> Any:
    """Answer a second deletion like the first."""
    if exchange.method != "DELETE" or exchange.status != 404 or "/responses/resp" not in exchange.path:
        return exchange
    made = {"id": exchange.path.rpartition("/")[2], "object": "response", "deleted": True}
    return with_body(changed(exchange, status=200), json.dumps(made).encode())


def _too_long(exchange: Any) -> Any:
    """Cut a prompt that is longer than the context, and answer."""
    if (
        not exchange.path.endswith(PATHS["chat"])
        or exchange.status != 400
        or len(exchange.request_body) < 3_000
    ):
        return exchange
    return with_body(changed(exchange, status=200), json.dumps(_chat_answer(_asked(exchange))).encode())


REQUESTS: tuple[Row, ...] = (
    ("", "a temperature of 0 is refused", refused("chat", lambda asked: asked.get("temperature") == 0)),
    ("", "a top_p of 1 is refused", refused("chat", lambda asked: asked.get("top_p") == 1)),
    (
        "",
        "parts of system messages are refused",
        refused("chat", _parts_of("system")),
    ),
    ("", "parts of results are refused", refused("chat", _parts_of("tool"))),
    (
        "",
        "an assistant without a text is refused",
        refused(
            "chat",
            lambda asked: any(
                one["role"] == "assistant" and one.get("content") is None for one in asked["messages"]
            ),
        ),
    ),
    (
        "",
        "developers are refused",
        refused("chat", lambda asked: any(one["role"] == "developer" for one in asked["messages"])),
    ),
    ("", "names of users are refused", refused("chat", lambda asked: "name" in asked["messages"][0])),
    (
        "marimo#6082",
        "max_completion_tokens is refused",
        refused("chat", lambda asked: asked.get("max_completion_tokens")),
    ),
    (
        "",
        "lists of stop strings are refused",
        refused("chat", lambda asked: isinstance(asked.get("stop"), list)),
    ),
    (
        "",
        "null is refused where a member may be left out",
        refused("chat", lambda asked: None in asked.values()),
    ),
    (
        "vllm#30059",
        "log probabilities without alternatives are refused",
        refused("chat", lambda asked: asked.get("logprobs") and not asked.get("top_logprobs")),
    ),
    (
        "",
        "text as the format is refused",
        refused("chat", lambda asked: (asked.get("response_format") or {}).get("type") == "text"),
    ),
    ("", "an empty stop string is answered", answered("chat", lambda asked: asked.get("stop"))),
    (
        "",
        "temperatures above 2 are answered",
        answered("chat", lambda asked: (asked.get("temperature") or 0) > 2),
    ),
    ("", "no messages are answered", answered("chat", lambda asked: asked.get("messages") == [])),
    ("", "unknown tools are chosen", answered("chat", _unlisted_choice)),
    ("", "any schema is answered", answered("chat", lambda asked: asked.get("response_format"))),
    ("", "prompts that are too long are cut", _too_long),
    (
        "",
        "prompts as token ids are refused",
        refused("completions", lambda asked: isinstance(asked["prompt"][0], int)),
    ),
    ("", "a limit of 0 is refused", refused("completions", lambda asked: asked.get("max_tokens") == 0)),
    ("", "several prompts are refused", refused("completions", lambda asked: len(asked["prompt"]) == 2)),
    (
        "lmstudio/localization#425",
        "results of several blocks are refused",
        refused("messages", _listed_result),
    ),
    ("vllm#57324", "marks of the cache are refused", refused("messages", _cached)),
    (
        "",
        "a system of blocks is refused",
        refused("messages", lambda asked: isinstance(asked.get("system"), list)),
    ),
    ("", "two messages of users are refused", refused("messages", _same_role)),
    (
        "",
        "thinking that is disabled is refused",
        refused("messages", lambda asked: asked["thinking"]["type"] == "disabled"),
    ),
    (
        "",
        "no tools as the choice is refused",
        refused("messages", lambda asked: asked["tool_choice"]["type"] == "none"),
    ),
    ("", "thoughts of earlier turns are refused", refused("messages", _any_block("thinking"))),
    (
        "",
        "Messages without a limit are answered",
        answered("messages", lambda asked: "max_tokens" not in asked),
    ),
    ("", "metadata of users are refused", refused("messages", lambda asked: asked.get("metadata"))),
    (
        "",
        "a text as the input is refused",
        refused("responses", lambda asked: isinstance(asked["input"], str)),
    ),
    (
        "",
        "thoughts as an input are refused",
        refused("responses", lambda asked: any(one.get("type") == "reasoning" for one in asked["input"])),
    ),
    (
        "",
        "messages without a type are refused",
        refused("responses", lambda asked: any("type" not in one for one in asked["input"])),
    ),
    ("vllm", "errors without an envelope", _body(_flat)),
    ("", "errors are encoded twice", _body(_twice_encoded)),
    ("FastAPI", "the place of an error is a list", of_errors(_place)),
    ("", "errors show a traceback", of_errors(_trace)),
    (
        "ASP.NET",
        "errors are called problems",
        headers(_refused_status, "content-type", "application/problem+json"),
    ),
    ("", "answers are called HTML", headers(_json, "content-type", "text/html")),
    ("", "a wrong key is forbidden", ended(_wrong_key, status=403)),
    ("", "a wrong method is a failure", ended(_wrong_method, status=500)),
    ("", "all requests have one id", headers(lambda one: one.status, "x-request-id", "req_1")),
    ("", "a response can be deleted twice", _found_again),
)
