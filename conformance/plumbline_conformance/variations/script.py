"""Script the answers that clients get: a text, a call of a tool, or an error, in every API, whole and streamed.

The text has characters of two, three and four bytes, and the arguments have arrays, objects and null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["ARGUMENTS", "CALL_ID", "EXPECTED", "MODEL", "TEXT", "TOOL", "answer"]

Json = dict[str, Any]
Event = tuple[str | None, Any]
"""The name of an event, if its API has names, and its JSON or `[DONE]`."""

MODEL = "scripted"
TOOL = "get_weather"
CALL_ID = "call_9f2c"
_PIECES = ("Grü", "ße, 世", "界 👋", " – done/")
TEXT = "".join(_PIECES)
_ARGUMENTS = ('{"city": "Zü', 'rich", "days": [1, ', '2], "options": {"unit": null, "exact": true}}')
ARGUMENTS = json.loads("".join(_ARGUMENTS))
EXPECTED: Json = {
    "text": TEXT,
    "tool": TOOL,
    "arguments": ARGUMENTS,
    "prompt_tokens": 11,
    "completion_tokens": 7,
}
"""What a client must have read, whatever the variation."""
_CREATED = 1_700_000_000


def answer(path: str, body: Any) -> Json | list[Event] | None:
    """Return the answer to a request below `/v1`: an object, the events of a stream, or None for an unknown path.

    A request with tools and without a tool's result gets a call.
    """
    asked: Json = body if isinstance(body, dict) else {}
    streams = asked.get("stream") is True
    calls = bool(asked.get("tools")) and not _has_result(asked)
    match path:
        case "/models":
            return {"object": "list", "data": [_model()]}
        case "/chat/completions":
            return list(_chat_events(asked, calls)) if streams else _chat(calls)
        case "/completions":
            return list(_completion_events()) if streams else _completion()
        case "/responses":
            return list(_response_events(calls)) if streams else _response(calls)
        case "/messages":
            return list(_message_events(calls)) if streams else _message(calls)
    return _model() if path.startswith("/models/") else None


def _has_result(body: Json) -> bool:
    lists = [body.get(name) for name in ("messages", "input")]
    items = [item for found in lists if isinstance(found, list) for item in found]
    return any(
        isinstance(item, dict)
        and (
            item.get("role") == "tool"
            or item.get("type") == "function_call_output"
            or "tool_result" in json.dumps(item.get("content"))
        )
        for item in items
    )


def _model() -> Json:
    return {"id": MODEL, "object": "model", "created": _CREATED, "owned_by": "plumbline"}


def _usage() -> Json:
    return {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def _called(arguments: str) -> Json:
    return {"id": CALL_ID, "type": "function", "function": {"name": TOOL, "arguments": arguments}}


def _chat(calls: bool) -> Json:
    message: Json = {"role": "assistant", "content": None if calls else TEXT, "refusal": None}
    if calls:
        message["tool_calls"] = [_called("".join(_ARGUMENTS))]
    finish = "tool_calls" if calls else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": _CREATED,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": _usage(),
    }


def _chat_events(asked: Json, calls: bool) -> Iterator[Event]:
    def chunk(delta: Json, finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return None, {**head, "choices": [choice]}

    head: Json = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": MODEL,
    }
    yield chunk({"role": "assistant", "content": None if calls else ""})
    if calls:
        yield chunk({"tool_calls": [{"index": 0, **_called("")}]})
        for piece in _ARGUMENTS:
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    else:
        for piece in _PIECES:
            yield chunk({"content": piece})
    yield chunk({}, "tool_calls" if calls else "stop")
    options = asked.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        yield None, {**head, "choices": [], "usage": _usage()}
    yield None, "[DONE]"


def _completion() -> Json:
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": _CREATED,
        "model": MODEL,
        "choices": [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}],
        "usage": _usage(),
    }


def _completion_events() -> Iterator[Event]:
    head = {"id": "cmpl-1", "object": "text_completion", "created": _CREATED, "model": MODEL}
    for piece in _PIECES:
        choice = {"index": 0, "text": piece, "logprobs": None, "finish_reason": None}
        yield None, {**head, "choices": [choice]}
    yield None, {**head, "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]}
    yield None, "[DONE]"


def _response(calls: bool, output: Sequence[Json] | None = None, status: str = "completed") -> Json:
    done = status == "completed"
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 18,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": _CREATED,
        "completed_at": _CREATED + 1 if done else None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": MODEL,
        "output": [_item(calls, "completed")] if output is None else list(output),
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "service_tier": "default",
        "max_tool_calls": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage if done else None,
        "user": None,
    }


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(calls: bool, status: str) -> Json:
    done = status == "completed"
    if calls:
        arguments = "".join(_ARGUMENTS) if done else ""
        return {
            "type": "function_call",
            "id": "fc_1",
            "call_id": CALL_ID,
            "name": TOOL,
            "arguments": arguments,
            "status": status,
        }
    content = [_part(TEXT)] if done else []
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}


def _response_events(calls: bool) -> Iterator[Event]:
    for number, (name, event) in enumerate(_named_response_events(calls)):
        yield name, {"type": name, "sequence_number": number, **event}


def _named_response_events(calls: bool) -> Iterator[tuple[str, Json]]:
    begun = _response(calls, [], "in_progress")
    at: Json = {"item_id": "fc_1" if calls else "msg_1", "output_index": 0}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    yield "response.output_item.added", {"output_index": 0, "item": _item(calls, "in_progress")}
    if calls:
        for piece in _ARGUMENTS:
            yield "response.function_call_arguments.delta", {**at, "delta": piece}
        whole = "".join(_ARGUMENTS)
        yield "response.function_call_arguments.done", {**at, "name": TOOL, "arguments": whole}
    else:
        at["content_index"] = 0
        yield "response.content_part.added", {**at, "part": _part("")}
        for piece in _PIECES:
            yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {**at, "text": TEXT, "logprobs": []}
        yield "response.content_part.done", {**at, "part": _part(TEXT)}
    yield "response.output_item.done", {"output_index": 0, "item": _item(calls, "completed")}
    yield "response.completed", {"response": _response(calls)}


def _message(calls: bool) -> Json:
    text = {"type": "text", "text": TEXT, "citations": None}
    call = {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": ARGUMENTS}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [call if calls else text],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }


def _message_events(calls: bool) -> Iterator[Event]:
    whole = _message(calls)
    begun = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 11, "output_tokens": 0}}
    block: Json = {"type": "text", "text": ""}
    if calls:
        block = {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": {}}
    events: list[tuple[str, Json]] = [
        ("message_start", {"message": begun}),
        ("content_block_start", {"index": 0, "content_block": block}),
    ]
    for piece in _ARGUMENTS if calls else _PIECES:
        kind, member = ("input_json_delta", "partial_json") if calls else ("text_delta", "text")
        events.append(("content_block_delta", {"index": 0, "delta": {"type": kind, member: piece}}))
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events += [
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": end, "usage": {"output_tokens": 7}}),
        ("message_stop", {}),
    ]
    for name, event in events:
        yield name, {"type": name, **event}
