"""Write messages of Anthropic's API, their streams and their errors."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

from example_servers.reference.model_output import Output, output, pieces
from example_servers.reference.refusals import Refused, known, valid

__all__ = ["CONTEXT", "PATH", "answer", "counted", "error", "events"]

PATH = "/v1/messages"
CONTEXT = 8192
"""Tokens of a prompt and its answer; a token of a prompt is a character."""
Json = dict[str, Any]
_MADE = count(1)
_CALLS = count(1)
_TYPES = {401: "authentication_error", 404: "not_found_error"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def error(refused: Refused) -> Json:
    """Return the error object of a refusal (MSG-11)."""
    kind = _TYPES.get(refused.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(refused)}}


def counted(body: Json, model: str) -> Json:
    """Return the tokens of the prompt (MSG-12)."""
    _check("CountMessageTokensRequest", body, model)
    return {"input_tokens": _prompt(body)}


def answer(body: Json, model: str) -> Json:
    """Return a whole message."""
    _check("CreateMessageRequest", body, model)
    found = _output(body)
    message = _head(body)
    message["content"] = list(_blocks(body, found))
    return {**message, **_end(body, found), "usage": _usage(body, found.tokens)}


def events(body: Json, model: str) -> list[Json]:
    """Return the events of a streamed message (MSG-07, MSG-08)."""
    _check("CreateMessageRequest", body, model)
    found = _output(body)
    written: list[Json] = [{"type": "message_start", "message": _head(body)}, {"type": "ping"}]
    for index, block in enumerate(_blocks(body, found)):
        written += [{"index": index, **event} for event in _streamed(block)]
    ending = {"type": "message_delta", "delta": _end(body, found), "usage": _usage(body, found.tokens)}
    return [*written, ending, {"type": "message_stop"}]


def _streamed(block: Json) -> Iterator[Json]:
    empty: Json
    match block["type"]:
        case "text":
            empty, deltas = (
                {"text": ""},
                [{"type": "text_delta", "text": one} for one in pieces(block["text"])],
            )
        case "thinking":
            empty = {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": one} for one in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case _:
            empty = {"input": {}}
            arguments = json.dumps(block["input"], ensure_ascii=False)
            deltas = [{"type": "input_json_delta", "partial_json": one} for one in pieces(arguments)]
    yield {"type": "content_block_start", "content_block": {**block, **empty}}
    yield from ({"type": "content_block_delta", "delta": delta} for delta in deltas)
    yield {"type": "content_block_stop"}


def _head(body: Json) -> Json:
    end = {"stop_reason": None, "stop_sequence": None, "usage": _usage(body, 0)}
    made = {"id": f"msg_{next(_MADE)}", "type": "message", "role": "assistant", "model": body["model"]}
    return {**made, "content": [], **end}


def _blocks(body: Json, found: Output) -> Iterator[Json]:
    if found.reasoning:
        shown = "" if body["thinking"].get("display") == "omitted" else found.reasoning
        yield {"type": "thinking", "thinking": shown, "signature": _signature(found.reasoning)}
    if found.text:
        yield {"type": "text", "text": found.text}
    for call in found.calls:
        # A limit may have cut the arguments.
        arguments = {} if found.finish == "length" else json.loads(call.arguments)
        yield {"type": "tool_use", "id": f"toolu_{next(_CALLS)}", "name": call.name, "input": arguments}


def _signature(thinking: str) -> str:
    return f"signed{zlib.crc32(thinking.encode())}"


def _end(body: Json, found: Output) -> Json:
    if found.finish == "tool_calls":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if found.finish == "length":
        full = CONTEXT - _prompt(body) < body["max_tokens"]
        reason = "model_context_window_exceeded" if full else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": None}
    whole = _output({**body, "stop_sequences": []}).text
    rest = whole.removeprefix(found.text)
    for word in body.get("stop_sequences") or []:
        if rest.startswith(word):
            return {"stop_reason": "stop_sequence", "stop_sequence": word}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(body: Json, written: int) -> Json:
    prompt = _prompt(body)
    cached = min(2, prompt - 1)
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": written,
    }


def _prompt(body: Json) -> int:
    """Count characters; neighbours of one role are one turn, with its texts on lines of their own (MSG-02)."""
    turns = [
        ("system", body.get("system") or ""),
        *((one["role"], one["content"]) for one in body["messages"]),
    ]
    joints = sum(first[0] == second[0] for first, second in pairwise(turns))
    return int(joints + sum(len(_text(text)) for _, text in turns))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    members = ("text", "content", "input", "source")
    parts = [next((block[name] for name in members if block.get(name)), "") for block in content]
    return "\n".join(_text(part) if isinstance(part, str | list) else json.dumps(part) for part in parts)


def _output(body: Json) -> Output:
    choice = body.get("tool_choice") or {"type": "auto"}
    last = body["messages"][-1]
    named = {"names": [choice.get("name")], "mode": "required"}
    return output(
        last["content"] if isinstance(last["content"], str) else "",
        tools=[{**tool, "parameters": tool.get("input_schema")} for tool in body.get("tools") or []],
        choice=named if choice["type"] == "tool" else _CHOICES[choice["type"]],
        parallel=not choice.get("disable_parallel_tool_use"),
        thinks=(body.get("thinking") or {}).get("type") in ("enabled", "adaptive"),
        constraint=((body.get("output_config") or {}).get("format") or {}).get("schema"),
        stop=body.get("stop_sequences"),
        limit=min(body["max_tokens"], CONTEXT - _prompt(body)),
    )


def _check(schema: str, body: Json, model: str) -> None:
    """Refuse what MSG-05 and MSG-06 forbid."""
    valid(schema, body)
    known(body, model)
    if _prompt(body) >= CONTEXT:
        raise Refused("Invalid value for 'messages': the prompt is too long.")
    calls: set[str] = set()
    for place, message in enumerate(body["messages"]):
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if results != calls:
            raise Refused(f"Invalid value for 'messages[{place}]': calls and results do not match.")
        calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
        for block in blocks:
            if block["type"] == "thinking" and block["signature"] != _signature(block["thinking"]):
                raise Refused(f"Invalid value for 'messages[{place}]': the signature is of other thinking.")
    if calls:
        raise Refused("Invalid value for 'messages': a call has no result.")
