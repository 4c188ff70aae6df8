"""Send scripted answers byte for byte, over HTTP/1.1 and WebSockets on loopback. A path begins with its case.

`/CASE/v1/chat/completions` is answered as the case says. `GET /cases` lists the cases with their URLs and what a client
must have read, and `POST /CASE/outcome` takes what a program saw: `{"ok": true}`, or `{"ok": false, "error": "…"}`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.transcript.sse import load_json
from plumbline_conformance.variations.cases import CASES, LegalAnswer
from plumbline_conformance.variations.script import EXPECTED, answer
from plumbline_conformance.variations.websocket import converse

__all__ = ["VariationServer", "scripted_exchange", "serving"]

_MOST_HEAD = 64 * 1024
_MOST_BODY = 16 * 1024 * 1024
_ERROR: dict[str, Any] = {
    "error": {"message": "The engine failed.", "type": "server_error", "param": None, "code": None}
}


class VariationServer:
    """Answers requests, and keeps the outcomes that programs post.

    Attributes:
        outcomes: by the slug of the case, what was posted; the text is empty if all was right.
        asked: by the slug of the case, how many requests came.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.asked: dict[str, int] = {}
        self.port = 0
        self._cases = {case.slug: case for case in CASES}
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def root(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, case: LegalAnswer) -> str:
        """Return the root of the API of a case."""
        return f"{self.root}/{case.slug}/v1"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(
                ConnectionError,
                asyncio.IncompleteReadError,
                asyncio.LimitOverrunError,
                asyncio.CancelledError,  # The server ends; asyncio would print the error of a cancelled handler.
                ValueError,
            ):
                while await self._one(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def close(self) -> None:
        """End the connections that are open."""
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether another one may come on the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        slug, _, path = target.partition("?")[0].lstrip("/").partition("/")
        case = self._cases.get(slug)
        if case is not None and headers.get("upgrade", "").lower() == "websocket":
            await self._conversed(reader, writer, head, case, path)
            return False
        body = await _body(reader, headers)
        if slug == "cases":
            writer.write(_whole(200, self._list()))
            await writer.drain()
            return True
        if case is None:
            writer.write(
                _whole(404, {"error": {"message": f"There is no case {slug}.", "type": "not_found"}})
            )
            await writer.drain()
            return True
        if path == "outcome":
            outcome = load_json(body)
            right = isinstance(outcome, dict) and outcome.get("ok") is True
            why = outcome.get("error") if isinstance(outcome, dict) else None
            self.outcomes[slug] = "" if right else str(why or "the program gave no error")[:500]
            writer.write(_whole(200, {}))
            await writer.drain()
            return True
        self.asked[slug] = self.asked.get(slug, 0) + 1
        kept = await _answered(writer, case, method, path.removeprefix("v1"), body)
        return kept and "close" not in headers.get("connection", "").lower()

    async def _conversed(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: str,
        case: LegalAnswer,
        path: str,
    ) -> None:
        """Answer the turns of a WebSocket; only Responses has them."""

        def asked(body: dict[str, Any]) -> Exchange:
            self.asked[case.slug] = self.asked.get(case.slug, 0) + 1
            found = scripted_exchange("POST", "/responses", json.dumps(body).encode())
            assert found is not None
            return found

        if path == "v1/responses":
            await converse(reader, writer, head.encode("latin-1"), case, asked)
        else:
            writer.write(
                _whole(404, {"error": {"message": f"No WebSocket is at {path}.", "type": "not_found"}})
            )
            await writer.drain()

    def _list(self) -> list[dict[str, Any]]:
        return [
            {
                "name": case.slug,
                "base_url": self.url(case),
                "outcome_url": f"{self.root}/{case.slug}/outcome",
                "expected": {**EXPECTED, "error": case.fails},
            }
            for case in CASES
        ]


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        parts, total = [], 0
        while size := int((await reader.readline()).partition(b";")[0], 16):
            total += size
            if not 0 < size <= total <= _MOST_BODY:
                raise ValueError(total)
            parts.append(await reader.readexactly(size))
            await reader.readline()
        while (await reader.readline()).strip():
            pass
        return b"".join(parts)
    length = int(headers.get("content-length") or 0)
    if not 0 <= length <= _MOST_BODY:
        raise ValueError(length)
    return await reader.readexactly(length)


def _whole(status: int, value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def scripted_exchange(method: str, path: str, body: bytes) -> Exchange | None:
    """Return the scripted answer before it is varied."""
    found = answer(path, load_json(body) if body else None)
    if found is None:
        return None
    headers = [("content-type", "application/json"), ("x-request-id", "req_1")]
    if isinstance(found, list):
        headers[0] = ("content-type", "text/event-stream")
        # Streams have plain characters and whole answers have escapes: servers do either.
        events = [
            (name, data if data == "[DONE]" else json.dumps(data, ensure_ascii=False)) for name, data in found
        ]
        texts = [f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n" for name, data in events]
    else:
        texts = [json.dumps(found)]
    return Exchange(
        method=method,
        url=f"http://127.0.0.1/v1{path}",
        request_headers={},
        request_body=body,
        status=200,
        headers=headers,
        frames=[(0.0, text.encode()) for text in texts],
    )


async def _answered(
    writer: asyncio.StreamWriter, case: LegalAnswer, method: str, path: str, body: bytes
) -> bool:
    sending = case.sending
    found = scripted_exchange(method, path, body)
    if found is None or sending.fails == "status":
        status = 404 if found is None else 500
        error: dict[str, Any] = {
            "error": {"message": f"There is no {path}.", "type": "invalid_request_error"}
        }
        writer.write(_whole(status, error if found is None else _ERROR))
        await writer.drain()
        return True
    varied = case.change(found)
    pieces = [frame for _, frame in varied.frames]
    if sending.fails:
        pieces = pieces[: max(1, len(pieces) // 2)]
        if len(varied.frames) == 1:
            pieces = [pieces[0][: len(pieces[0]) // 2]]
    if sending.fails == "event":
        if len(varied.frames) == 1:  # Only a stream can fail after its status.
            writer.write(_whole(500, _ERROR))
            await writer.drain()
            return True
        pieces.append(_error_event(path, len(pieces)))
    await asyncio.sleep(sending.wait)
    framing = "chunked" if sending.fails == "cut" else sending.framing
    head = [f"HTTP/1.1 {varied.status} OK", *(f"{name}: {value}" for name, value in varied.headers)]
    head.append(
        {
            "chunked": "transfer-encoding: chunked",
            "length": f"content-length: {sum(map(len, pieces))}",
            "close": "connection: close",
        }[framing]
    )
    writer.write(sending.before + "\r\n".join([*head, "", ""]).encode())
    for piece in pieces:
        if piece:
            chunk = f"{len(piece):x}".encode() + sending.extension + b"\r\n" + piece + b"\r\n"
            writer.write(chunk if framing == "chunked" else piece)
        # Each piece is a packet of its own, as far as the system does not join them.
        await writer.drain()
        await asyncio.sleep(sending.between)
    if sending.fails == "cut":
        return False
    if framing == "chunked":
        writer.write(b"0\r\n" + sending.trailer + b"\r\n")
    await writer.drain()
    return framing != "close"


def _error_event(path: str, number: int) -> bytes:
    """Return the event by which a stream of this API fails."""
    if path == "/responses":
        error = {
            "type": "error",
            "sequence_number": number,
            "code": "server_error",
            "message": "The engine failed.",
        }
        return f"event: error\ndata: {json.dumps({**error, 'param': None})}\n\n".encode()
    if path == "/messages":
        failed = {"type": "error", "error": {"type": "api_error", "message": "The engine failed."}}
        return f"event: error\ndata: {json.dumps(failed)}\n\n".encode()
    return f"data: {json.dumps(_ERROR)}\n\n".encode()


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[VariationServer]:
    """Run the server on a port of loopback; 0 for a free one."""
    found = VariationServer()
    server = await asyncio.start_server(found.connected, "127.0.0.1", port, limit=_MOST_HEAD)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield found
        finally:
            await found.close()
