"""Legal differences that agents meet, as threads of public trackers and the official documents show them."""

from __future__ import annotations

import json
from typing import Any

from mutants.mutations import with_body

from field_faults.changes import Event, Json, Row, calls_in, each_choice, streamed, whole
from field_faults.parts import of_errors, of_models

__all__ = ["AGENTS_LEGAL"]


def _streams(change: Any) -> Any:
    """Change the bytes of streams."""

    def apply(exchange: Any) -> Any:
        if exchange.status != 200 or b"data: " not in exchange.body or exchange.method == "WEBSOCKET":
            return exchange
        return with_body(exchange, change(exchange.body))

    return apply


def _numbered(body: bytes) -> bytes:
    return b"retry: 3000\n\n" + body.replace(b"data: {", b"id: 7\ndata: {")


def _tiers(answer: Json, _: Json) -> None:
    answer["service_tier"] = "default"


def _all_details(answer: Json, asked: Json) -> None:
    if asked.get("store"):
        return  # What is read again must be the same.
    usage = answer["usage"]
    usage["completion_tokens_details"] = {
        **(usage.get("completion_tokens_details") or {}),
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }


def _signed_start(events: list[Event], _: Json) -> None:
    for _name, data in events:
        block = data.get("content_block") or {}
        if block.get("type") == "thinking":
            block.setdefault("signature", "")
        if block.get("type") == "text":
            block.setdefault("citations", None)


def _one_at_start(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if data["type"] == "message_start":
            data["message"]["usage"]["output_tokens"] = 1


def _full_end(events: list[Event], _: Json) -> None:
    start = next(data["message"]["usage"] for _, data in events if data["type"] == "message_start")
    for _name, data in events:
        if data["type"] == "message_delta":
            data["usage"] = {**start, **data["usage"], "server_tool_use": None}
            data["delta"]["stop_details"] = None


def _role_with_text(events: list[Event], _: Json) -> list[Event]:
    """Write the role beside the first text, with no chunk before it."""
    first, second = events[0][1], events[1][1]
    ready = isinstance(second, dict) and len(second["choices"]) == 1 == len(first["choices"])
    if (
        not ready
        or not second["choices"][0]["delta"].get("content")
        or first["choices"][0]["delta"].get("content")
    ):
        return events
    second["choices"][0]["delta"]["role"] = "assistant"
    return events[1:]


def _empty_content(choice: Json, _: Json) -> None:
    if calls_in(choice) and choice["message"].get("content") is None:
        choice["message"]["content"] = ""


def _empty_end(events: list[Event], _: Json) -> None:
    for _name, data in events:
        for choice in data["choices"] if isinstance(data, dict) else ():
            if choice["finish_reason"] and not choice["delta"]:
                choice["delta"]["content"] = ""


def _own_members(answer: Json, _: Json) -> None:
    for choice in answer["choices"]:
        choice.update(stop_reason=None, prompt_logprobs=None, token_ids=None)
    answer["kv_transfer_params"] = None


def _complete_thoughts(answer: Json, asked: Json) -> None:
    if asked.get("store") is not False:
        return  # What is read again must be the same.
    for item in answer["output"]:
        if item["type"] == "reasoning":
            item.setdefault("encrypted_content", None)
            item["status"] = "completed"


def _more_details(answer: Json, asked: Json) -> None:
    if asked.get("store") is False and answer.get("usage"):
        answer["usage"]["input_tokens_details"]["audio_tokens"] = 0


def _coded(error: Json, _: int) -> None:
    if error.get("code") is None and "param" in error:
        error["code"] = "bad_request"


def _owned(model: Json) -> None:
    model.update(owned_by="llamacpp", meta={"n_ctx_train": 4096}, status={"value": "loaded"})


def _compact(body: bytes) -> bytes:
    """Write JSON without spaces, and fields without the space that may follow the colon."""
    lines = []
    for line in body.split(b"\n"):
        if line.startswith(b"data: {"):
            line = b"data:" + json.dumps(json.loads(line[6:]), separators=(",", ":")).encode()
        lines.append(line.replace(b"event: ", b"event:"))
    return b"\n".join(lines)


AGENTS_LEGAL: tuple[Row, ...] = (
    ("ASP.NET", "fields of streams without a space", _streams(_compact)),
    ("Spring", "events with ids and a time to reconnect", _streams(_numbered)),
    ("OpenAI", "the tier that served", whole("chat", _tiers)),
    ("OpenAI", "all details of the answer's tokens", whole("chat", _all_details)),
    ("Anthropic", "members of blocks from the start", streamed("messages", _signed_start)),
    ("Anthropic", "one token at the start of a message", streamed("messages", _one_at_start)),
    ("Anthropic", "all counts at the end of a message", streamed("messages", _full_end)),
    ("OpenRouter", "the role beside the first text", streamed("chat", _role_with_text)),
    ("sglang", "an empty text beside calls", whole("chat", each_choice(_empty_content))),
    ("vllm", "an empty text at the end", streamed("chat", _empty_end)),
    ("vllm", "members of its own in completions", whole("completions", _own_members)),
    ("OpenAI", "all members of thoughts", whole("responses", _complete_thoughts)),
    ("OpenAI", "more details of the prompt's tokens", whole("responses", _more_details)),
    ("one-api", "codes of its own in errors", of_errors(_coded)),
    ("llama.cpp", "the state of models", of_models(_owned)),
)
