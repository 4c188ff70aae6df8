"""Hostile rows of the page's own route, which is not in the contract: what its judge is asked to look at."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from .table import ROWS, Row

JUDGE = "/page/judge"
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}


def exchange(
    data: bytes, *, frames: int = 1, request: bytes = b'{"stream": true}', **more: Any
) -> dict[str, Any]:
    size = max(1, len(data) // frames)
    return {
        "path": "/v1/chat/completions",
        "request": base64.b64encode(request).decode(),
        "status": 200,
        "headers": [["content-type", "text/event-stream"]],
        "frames": [
            [number / 100, base64.b64encode(data[number * size : (number + 1) * size]).decode()]
            for number in range(frames)
        ],
        **more,
    }


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def add(name: str, body: Callable[[], Any]) -> None:
    ROWS.append(Row(f"judge: {name}", JUDGE, body))


add("as many events as fit", lambda: exchange(event(CHUNK) * 20_000, frames=20_000))
add("as many wrong events as fit", lambda: exchange(event({"choices": [{}]}) * 60_000, frames=20_000))
add("empty events", lambda: exchange(b"data: {}\n\n" * 200_000))
add(
    "one long event", lambda: exchange(event({**CHUNK, "choices": [{"delta": {"content": "x" * 2_000_000}}]}))
)
add("too many bytes", lambda: exchange(b"x" * 6_000_000))
add("too many frames", lambda: {**exchange(b""), "frames": [[0, ""]] * 90_000})
add("deep JSON", lambda: exchange(b"data: " + b"[" * 500_000 + b"]" * 500_000 + b"\n\n"))
add("a deep request", lambda: exchange(event(CHUNK), request=b'{"stream": ' + b"[" * 900_000))
add("many members", lambda: exchange(event({f"m{n}": {"a": {}} for n in range(60_000)})))
add("a long schema to validate", lambda: exchange(event({**CHUNK, "choices": [
    {"index": 0, "delta": {"content": '{"a": 1}'}, "finish_reason": "stop"}]}), request=json.dumps({
        "stream": True, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {
            "anyOf": [{"pattern": "(a+)+$", "minimum": n} for n in range(20_000)]}}}}).encode()))  # fmt: skip
