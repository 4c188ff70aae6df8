"""Convert a recording to HAR 1.2, for browsers, proxies and load generators.

The HAR has less than the recording: bodies are text, the times of frames are in the extension `_frames`, and it cannot
be judged again. Credentials are redacted already.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from plumbline_conformance.recording.file import Recording
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["har"]

Json = dict[str, Any]


def har(recording: Recording) -> str:
    """Return the HAR document.

    A recording has the start of the run and the duration of each answer, but not the start of each request, so the
    entries follow one another from the start of the run.
    """
    began = datetime.fromisoformat(recording.header.started)
    entries: list[Json] = []
    for seen in recording.transcripts:
        for exchange in seen.everything:
            entry = _entry(exchange, began)
            entries.append({**entry, "pageref": seen.scenario})
            began += timedelta(milliseconds=entry["time"])
    names = dict.fromkeys(entry["pageref"] for entry in entries)
    first = {name: next(e["startedDateTime"] for e in entries if e["pageref"] == name) for name in names}
    pages = [_page(name, first[name]) for name in names]
    creator = {"name": "plumbline", "version": recording.header.suite.get("version", "")}
    log = {"version": "1.2", "creator": creator, "pages": pages, "entries": entries}
    return json.dumps({"log": log}, indent=1) + "\n"


def _page(name: str, started: str) -> Json:
    return {"id": name, "title": name, "startedDateTime": started, "pageTimings": {}}


def _entry(exchange: Exchange, began: datetime) -> Json:
    first = exchange.frames[0][0] if exchange.frames else 0.0
    last = exchange.frames[-1][0] if exchange.frames else 0.0
    found: Json = {
        "startedDateTime": began.isoformat(timespec="milliseconds"),
        "time": round(1000 * last, 3),
        "request": _request(exchange),
        "response": _response(exchange),
        "cache": {},
        "timings": {"send": 0, "wait": round(1000 * first, 3), "receive": round(1000 * (last - first), 3)},
    }
    if exchange.name:
        found["_name"] = exchange.name
    if exchange.error is not None:
        found["comment"] = exchange.error
    if exchange.method == "WEBSOCKET":
        found["_webSocketMessages"] = [*_sent(exchange), *_received(exchange)]
    elif len(exchange.frames) > 1:
        found["_frames"] = [[round(1000 * at, 3), len(frame)] for at, frame in exchange.frames]
    return found


def _request(exchange: Exchange) -> Json:
    found: Json = {
        # A WebSocket upgrade is a GET; its messages are listed separately.
        "method": "GET" if exchange.method == "WEBSOCKET" else exchange.method,
        "url": exchange.url,
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": _pairs(list(exchange.request_headers.items())),
        "queryString": _pairs(_query(exchange.url)),
        "headersSize": -1,
        "bodySize": len(exchange.request_body),
    }
    if exchange.request_body and exchange.method != "WEBSOCKET":
        kind = exchange.request_headers.get("content-type", "application/octet-stream")
        found["postData"] = {"mimeType": kind, "text": exchange.request_body.decode("utf-8", "replace")}
    return found


def _query(url: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(urlsplit(url).query, keep_blank_values=True)
    except ValueError:  # An address that nothing can be sent to, such as `http://[`.
        return []


def _response(exchange: Exchange) -> Json:
    content: Json = {"size": len(exchange.body), "mimeType": exchange.header("content-type") or ""}
    if exchange.method != "WEBSOCKET" or exchange.status != 101:
        try:
            content["text"] = exchange.body.decode()
        except UnicodeDecodeError:
            content |= {"text": base64.b64encode(exchange.body).decode(), "encoding": "base64"}
    return {
        "status": exchange.status,
        "statusText": "",
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": _pairs(exchange.headers),
        "content": content,
        "redirectURL": exchange.header("location") or "",
        "headersSize": -1,
        "bodySize": len(exchange.body),
    }


def _sent(exchange: Exchange) -> list[Json]:
    texts = exchange.request_body.split(b"\n")
    return [
        {"type": "send", "time": 0, "opcode": 1, "data": text.decode("utf-8", "replace")} for text in texts
    ]


def _received(exchange: Exchange) -> list[Json]:
    return [
        {"type": "receive", "time": at, "opcode": 1, "data": frame.decode("utf-8", "replace")}
        for at, frame in exchange.frames
    ]


def _pairs(pairs: Sequence[tuple[str, str]]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in pairs]
