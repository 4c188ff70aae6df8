"""Legal differences that threads of public trackers and the official documents show."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from mutants.mutations import with_body

from field_faults.changes import (
    Change,
    Event,
    Json,
    Row,
    calls_in,
    deltas,
    each_choice,
    headers,
    streamed,
    whole,
)
from field_faults.parts import entries, of_errors, of_models

__all__ = ["FURTHER_LEGAL"]


def _reason_with_text(events: list[Event], _: Json) -> list[Event]:
    found: list[Event] = []
    for name, data in events:
        choices = data["choices"] if isinstance(data, dict) else []
        last = found[-1][1] if found else None
        if len(choices) == 1 and choices[0]["finish_reason"] and isinstance(last, dict):
            before = last["choices"]
            if len(before) == 1 and not choices[0]["delta"] and before[0]["index"] == choices[0]["index"]:
                before[0]["finish_reason"] = choices[0]["finish_reason"]
                continue
        found.append((name, data))
    return found


def _own_counts(answer: Json, _: Json) -> None:
    answer["usage"].update(num_cached_tokens=0, prompt_cache_hit_tokens=0)


def _short_usage(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if data["type"] == "message_delta":
            data["usage"] = {"output_tokens": data["usage"]["output_tokens"]}


def _unpinged(events: list[Event], _: Json) -> list[Event]:
    return [one for one in events if one[1]["type"] != "ping"]


def _commented(exchange: Any) -> Any:
    if exchange.status != 200 or b"data: " not in exchange.body or exchange.method == "WEBSOCKET":
        return exchange
    return with_body(exchange, exchange.body.replace(b"\n\n", b"\n\n: keep-alive\n\n"))


def _crlf(exchange: Any) -> Any:
    if exchange.status != 200 or b"data: " not in exchange.body or exchange.method == "WEBSOCKET":
        return exchange
    return with_body(exchange, exchange.body.replace(b"\n", b"\r\n"))


def _sized(model: Json) -> None:
    model.update(max_model_len=4096, permission=[], root=model["id"], parent=None)


def _is_json(exchange: Any) -> bool:
    return bool(exchange.header("content-type") == "application/json")


def _named_error(error: Json, _: int) -> None:
    error["request_id"] = "req_1"


def _obfuscated(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if isinstance(data, dict) and str(data.get("type")).endswith("output_text.delta"):
            data["obfuscation"] = "x1Yz"


def _full_messages(answer: Json, _: Json) -> None:
    for choice in answer["choices"]:
        choice["message"].update(refusal=None, annotations=[], audio=None)


def _unlikely(choice: Json, _: Json) -> None:
    for one in entries(choice):
        if len(one["top_logprobs"]) > 1:
            one["top_logprobs"][-1]["logprob"] = -9999.0


def _stop_details(answer: Json, _: Json) -> None:
    answer.update(stop_details=None, container=None, context_management=None)


def _own_ids(choice: Json, _: Json) -> None:
    for call in calls_in(choice):
        if call.get("id"):
            call["id"] = f"chatcmpl-tool-{call['id']}"


def _null_arguments(events: list[Event], _: Json) -> None:
    for _name, data in events:
        for choice in data["choices"] if isinstance(data, dict) else ():
            for call in calls_in(choice):
                function = call.get("function") or {}
                if function.get("name") and not function.get("arguments"):
                    function["arguments"] = None


NOT_REQUIRED = ("completed_at", "frequency_penalty", "presence_penalty", "store")
"""Members of a response that OpenAI's document describes and does not require."""


def _responses(change: Any) -> Change:
    """Change every response object: of answers, of what is read back, and in events."""

    def stored(exchange: Any) -> Any:
        if exchange.method != "GET" or exchange.status != 200 or not isinstance(exchange.json, dict):
            return exchange
        if exchange.json.get("object") != "response":
            return exchange
        answer = deepcopy(exchange.json)
        change(answer)
        return with_body(exchange, json.dumps(answer).encode())

    def events(found: list[Event], _: Json) -> None:
        for _name, data in found:
            if isinstance(data, dict) and isinstance(data.get("response"), dict):
                change(data["response"])

    parts = (stored, whole("responses", lambda answer, _: change(answer)), streamed("responses", events))

    def apply(exchange: Any) -> Any:
        for part in parts:
            exchange = part(exchange)
        return exchange

    return apply


def _required_alone(response: Json) -> None:
    for name in NOT_REQUIRED:
        response.pop(name, None)


def _own_members(exchange: Any) -> Any:
    """Add a member of its own to every JSON answer, which no stored object and no event has."""
    if exchange.method == "WEBSOCKET" or exchange.status != 200 or not isinstance(exchange.json, dict):
        return exchange
    return with_body(exchange, json.dumps({**exchange.json, "x_vendor": {"node": 7}}).encode())


def _own_members_of_events(found: list[Event], _: Json) -> None:
    for _name, data in found:
        if isinstance(data, dict):
            data["x_vendor"] = 1


def _nameless(error: Json, _: int) -> None:
    error.update(code=None, param=None)


def _two_blocks(message: Json, asked: Json) -> None:
    for place, block in enumerate(message["content"]):
        if block["type"] == "text" and len(block["text"]) > 4 and not asked.get("output_config"):
            halves = block["text"][:2], block["text"][2:]
            message["content"][place : place + 1] = [{**block, "text": half} for half in halves]
            return


FURTHER_LEGAL: tuple[Row, ...] = (
    ("vllm-ascend#8327", "the reason beside the last text", streamed("chat", _reason_with_text)),
    ("symfony/ai#2274", "cached tokens in members of its own", whole("chat", _own_counts)),
    ("Anthropic", "the end of a message counts the output only", streamed("messages", _short_usage)),
    ("Anthropic", "no pings", streamed("messages", _unpinged)),
    ("OpenRouter", "comments between events", _commented),
    ("sse-starlette", "lines end with CRLF", _crlf),
    ("vllm", "sizes and permissions of models", of_models(_sized)),
    ("ASP.NET", "the charset of JSON", headers(_is_json, "content-type", "application/json; charset=utf-8")),
    ("new-api", "errors with the id of the request", of_errors(_named_error)),
    ("OpenAI", "padding of deltas", streamed("responses", _obfuscated)),
    ("OpenAI", "messages with all members", whole("chat", _full_messages)),
    ("OpenAI", "-9999 for unlikely tokens", whole("chat", each_choice(_unlikely))),
    ("Anthropic", "members of later versions", whole("messages", _stop_details)),
    ("vllm", "ids of calls of its own", deltas(_own_ids)),
    ("vllm#9693", "arguments of streams begin with null", streamed("chat", _null_arguments)),
    ("OpenAI", "required members of responses alone", _responses(_required_alone)),
    ("OpenAI", "errors without a code and a param", of_errors(_nameless)),
    ("Anthropic", "a text in two blocks", whole("messages", _two_blocks)),
    ("OpenAI", "members of its own in every answer", _own_members),
    ("OpenAI", "members of its own in events", streamed("responses", _own_members_of_events)),
)
