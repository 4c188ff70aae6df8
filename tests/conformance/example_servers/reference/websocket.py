"""Serve responses over a WebSocket (WS-01 to WS-10)."""

from __future__ import annotations

import json
from typing import Any

from example_servers.reference.names import MODEL
from example_servers.reference.refusals import Refused, authorised, check_response
from example_servers.reference.responses import Kept, Memory
from example_servers.reference.schema_faults import read_json

__all__ = ["converse"]

Json = dict[str, Any]
IGNORED = ("type", "stream_id", "stream", "stream_options", "background")
"""Fields of the event itself, and fields that clients must not send (WS-02)."""


async def converse(kept: Kept, scope: Any, receive: Any, send: Any) -> None:
    """Serve one connection; read the next message after the end of a turn (WS-04)."""
    await receive()
    try:
        if scope["path"] != "/v1/responses":
            raise Refused("Unknown URL.", None, "unknown_url", status=404)
        authorised(scope)
    except Refused as refused:
        body = json.dumps(refused.error).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        start = {"type": "websocket.http.response.start", "status": refused.status, "headers": headers}
        await send(start)
        await send({"type": "websocket.http.response.body", "body": body})
        return
    await send({"type": "websocket.accept"})
    latest: Memory = {}
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text") or ""
        lane = _lane(text)
        for event in _answer(kept, latest, text):
            event = {**event, **lane}
            await send({"type": "websocket.send", "text": json.dumps(event)})


def _lane(text: str) -> Json:
    """Return what names the lane in every event (WS-10)."""
    try:
        event = read_json(text)
    except Refused:
        return {}
    return {"stream_id": event["stream_id"]} if isinstance(event, dict) and "stream_id" in event else {}


def _answer(kept: Kept, latest: Memory, text: str) -> list[Json]:
    try:
        return _turn(kept, latest, read_json(text))
    except Refused as refused:
        error = refused.error["error"]
        return [
            {
                "type": "error",
                "status": refused.status,
                "error": {**error, "code": error["code"] or "invalid"},
            }
        ]


def _turn(kept: Kept, latest: Memory, event: Any) -> list[Json]:
    if not isinstance(event, dict):
        raise Refused("We could not parse the JSON of your message.", None, "invalid_json")
    if event.get("type") != "response.create":
        raise Refused("Unknown event.", "type", "unknown_event")
    body = {key: value for key, value in event.items() if key not in IGNORED}
    previous = body.get("previous_response_id")
    try:
        check_response({"model": None, **body}, MODEL)
        _, events = kept.create(body, latest)
    except Refused:
        latest.pop(str(previous), None)
        raise
    return events
