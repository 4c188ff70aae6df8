"""Law: the first event of a turn over a WebSocket has what an answer to the same request over HTTP has in headers."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from support.models import served, tiny_engine
from support.servers.live import live
from websockets.sync.client import connect

from plumbline.server.settings import Settings

NAMES = ("x-plumbline-ignored", "x-plumbline-unenforced", "x-plumbline-skipped-tools")
BODY: dict[str, Any] = {"model": "test-model", "input": "hi", "max_output_tokens": 16, "temperature": 0}
SCHEMA = {
    "type": "array",
    "items": {"type": "string", "format": "binary"},
    "uniqueItems": True,
    "maxItems": 2,
}
BAD = {"type": "function", "name": "bad", "parameters": {"type": "nonsense"}}
UNREADABLE = {"type": "function", "name": 7}
GOOD = {"type": "function", "name": "good", "parameters": {"type": "object"}}
REQUESTS: dict[str, dict[str, Any]] = {
    "nothing to say": {},
    "an unknown field": {"tool_choise": "auto"},
    "an unenforced keyword": {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    "an invalid tool": {"tools": [BAD, GOOD], "x_skip_invalid_tools": True},
    "a tool that cannot be read": {
        "tools": [GOOD, UNREADABLE, BAD],
        "x_skip_invalid_tools": True,
        "fields": 1,
    },
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_first_event_has_what_an_http_answer_has_in_headers(name: str) -> None:
    body = {**BODY, **REQUESTS[name]}
    with live(lambda: served(tiny_engine()), Settings()) as server:
        answer = httpx2.post(f"{server.url}/v1/responses", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        with connect(f"ws://127.0.0.1:{server.port}/v1/responses") as socket:
            socket.send(json.dumps({"type": "response.create", "stream_id": "a", **body}))
            events = [json.loads(socket.recv(timeout=20))]
            while events[-1]["type"] not in ("response.completed", "response.incomplete"):
                events.append(json.loads(socket.recv(timeout=20)))
    first, *rest = events
    assert first["type"] == "response.created"
    assert first.get("x_headers", {}) == {one: answer.headers[one] for one in NAMES if one in answer.headers}
    assert bool(first.get("x_headers")) == (name != "nothing to say")
    assert all("x_headers" not in event for event in rest)


def test_unknown_fields_are_refused_where_the_server_is_strict() -> None:
    with (
        live(lambda: served(tiny_engine()), Settings(strict=True)) as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/responses") as socket,
    ):
        socket.send(json.dumps({"type": "response.create", **BODY, "tool_choise": "auto"}))
        event = json.loads(socket.recv(timeout=20))
    assert (event["type"], event["error"]["code"], event["error"]["param"]) == (
        "error",
        "unknown_parameter",
        "tool_choise",
    )
