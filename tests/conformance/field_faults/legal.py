"""Legal differences between servers."""

from __future__ import annotations

import json
from typing import Any

from mutants.mutations import changed, with_body

from field_faults.changes import Event, Json, Row, deltas, streamed, whole
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["LEGAL"]


def _body(change: Any) -> Any:
    def apply(exchange: Exchange) -> Exchange:
        if exchange.status != 200 or not isinstance(exchange.json, dict) or b"data: " in exchange.body:
            return exchange
        return with_body(exchange, change(exchange.json))

    return apply


def _extended(answer: Json, _: Json) -> None:
    answer["timings"] = {"prompt_ms": 1.5, "predicted_per_second": 99.0}
    answer["usage"]["prompt_time"] = 0.25


def _extended_choices(answer: Json, _: Json) -> None:
    for choice in answer["choices"]:
        choice.update(stop_reason=None, token_ids=None)
        choice["message"].update(reasoning=None, function_call=None)


def _unnamed_server(answer: Json, _: Json) -> None:
    answer.pop("system_fingerprint", None)
    answer.pop("service_tier", None)


def _extended_chunks(events: list[Event], _: Json) -> None:
    for _kind, data in events:
        if isinstance(data, dict):
            data["provider"] = "x"


def _null_role(choice: Json, _: Json) -> None:
    choice["delta"].setdefault("content", None)


def _empty_delta(events: list[Event], _: Json) -> list[Event]:
    first = next(data for _kind, data in events if isinstance(data, dict))
    empty = {
        **first,
        "choices": [{"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": None}],
    }
    return [events[0], (None, empty), *events[1:]]


def _details(answer: Json, _: Json) -> None:
    answer["usage"]["prompt_tokens_details"] = None


def _no_done(events: list[Event], _: Json) -> list[Event]:
    return [one for one in events if one[1] != "[DONE]"]


def _pinged(events: list[Event], _: Json) -> list[Event]:
    return [one for event in events for one in (event, ("ping", {"type": "ping"}))][:-1]


def _cache_details(answer: Json, _: Json) -> None:
    answer["usage"].update(
        cache_creation={"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        server_tool_use=None,
        service_tier="standard",
    )
    answer["container"] = None


def _named_parameters(answer: Json, asked: Json) -> None:
    if asked.get("store") is not False:
        return  # What is read again must be the same.
    answer["billing"] = {"payer": "developer"}
    answer["frequency_penalty"] = 0.0


def _other_headers(exchange: Exchange) -> Exchange:
    return changed(exchange, headers=[*exchange.headers, ("server", "uvicorn"), ("x-process-time", "0.01")])


LEGAL: tuple[Row, ...] = (
    ("-", "the helpers change nothing by themselves", _body(lambda answer: json.dumps(answer).encode())),
    ("llama.cpp", "bodies with indents", _body(lambda answer: json.dumps(answer, indent=2).encode())),
    ("vllm", "characters as they are", _body(lambda answer: json.dumps(answer, ensure_ascii=False).encode())),
    ("llama.cpp", "times and speeds", whole("chat", _extended)),
    ("vllm", "members of its own in choices", whole("chat", _extended_choices)),
    ("ollama", "no fingerprint and no tier", whole("chat", _unnamed_server)),
    ("OpenRouter", "members of its own in chunks", streamed("chat", _extended_chunks)),
    ("vllm", "null as the text of other chunks", deltas(_null_role)),
    ("sglang", "a chunk with an empty text", streamed("chat", _empty_delta)),
    ("vllm", "no details of the prompt", whole("chat", _details)),
    ("OpenAI", "no [DONE] after a response", streamed("responses", _no_done)),
    ("LM Studio", "members of its own in responses", whole("responses", _named_parameters)),
    ("Anthropic", "a ping after every event", streamed("messages", _pinged)),
    ("Anthropic", "details of the cache", whole("messages", _cache_details)),
    ("uvicorn", "headers of its own", _other_headers),
)
