"""Hostile traffic for the soak: one act of each kind that a server must survive, as raw bytes where needed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import random
import time
from collections.abc import Awaitable
from typing import Any

import httpx2
from hostile.rows import ROWS, Row
from PIL import Image
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

__all__ = ["HostileTraffic"]

_TEMPLATE = (
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"
)
_AMBIGUOUS = 'start: e "!"\ne: e e e | e e | "a"'
_TURN = {
    "type": "response.create",
    "model": "pocket",
    "input": "Tell a story.",
    "max_output_tokens": 500,
    "store": False,
}
_PIECES = 40
"""Pieces of a flood; each has 64 KiB."""
_PATIENCE = 60.0
_COLOURS = 32
"""Images that differ."""


class HostileTraffic:
    """Acts against one server.

    Args:
        url: of the server.
        port: of the server.
        seed: of the choices.
    """

    def __init__(self, url: str, port: int, seed: int) -> None:
        self._url, self._port = url, port
        self._random = random.Random(seed)
        self.acts = [self.headers, self.trailers, self.target, self.pipelined, self.abandoned, self.frames]
        self.acts += [self.template, self.grammar, self.image, self.row]

    async def each_once(self, end: float) -> None:
        """Send what caches keep once each: every image, and every row. Later traffic adds nothing to them.

        Args:
            end: when to stop, by `time.monotonic`.
        """
        for colour in range(_COLOURS):
            if time.monotonic() < end:
                await self._guarded(self._send_image(colour))
        for row in ROWS:
            if time.monotonic() < end:
                await self._guarded(self._send_row(row))

    async def act(self) -> str:
        """Do one of them; returns its name."""
        chosen = self._random.choice(self.acts)
        await self._guarded(chosen())
        return chosen.__name__

    async def _guarded(self, work: Awaitable[None]) -> None:
        # A server may close the connection of any of them, or answer with an error of the client's.
        with contextlib.suppress(OSError, EOFError, TimeoutError, WebSocketException, httpx2.TransportError):
            async with asyncio.timeout(_PATIENCE):
                await work

    async def headers(self) -> None:
        """Send headers without end."""
        await self._flood(b"GET /health HTTP/1.1\r\nhost: localhost\r\n", b"a:b\r\n" * 13_000)

    async def trailers(self) -> None:
        """Send trailers without end."""
        head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        await self._flood(head + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a:b\r\n" * 13_000)

    async def target(self) -> None:
        """Send a request target without end."""
        await self._flood(b"GET /", b"a" * 65_536)

    async def pipelined(self) -> None:
        """Send requests ahead, and read no answer."""
        await self._flood(b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1_500)

    async def _flood(self, first: bytes, piece: bytes) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(first)
            for _ in range(_PIECES):
                writer.write(piece)
                await asyncio.wait_for(writer.drain(), 2)
        finally:
            writer.transport.abort()

    async def abandoned(self) -> None:
        """Leave a WebSocket with messages that wait."""
        async with connect(f"ws{self._url[4:]}/v1/responses", compression=None) as socket:
            for _ in range(25):
                await socket.send(json.dumps({**_TURN, "input": "x" * 100_000}))
            socket.transport.abort()

    async def frames(self) -> None:
        """Send a message in frames without payload."""
        async with connect(f"ws{self._url[4:]}/v1/responses", compression=None) as socket:
            empty = b"\x00\x80" + b"\0" * 4
            socket.transport.write(b"\x01\x80" + b"\0" * 4)
            for _ in range(20):
                socket.transport.write(empty * 10_000)
                await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(socket.recv(), 2)

    async def template(self) -> None:
        """Send a chat template that never ends."""
        await self._chat(chat_template=_TEMPLATE)

    async def grammar(self) -> None:
        """Constrain an answer by an ambiguous grammar."""
        await self._chat(structured_outputs={"grammar": _AMBIGUOUS}, logit_bias={"64": 100}, max_tokens=300)

    async def image(self) -> None:
        """Send a small file with 30 million pixels."""
        await self._send_image(self._random.randrange(_COLOURS))

    async def _send_image(self, colour: int) -> None:
        file = io.BytesIO()
        Image.new("RGBA", (6000, 5000), (colour, 2, 3, 4)).save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
        await self._chat(messages=[{"role": "user", "content": content}])

    async def row(self) -> None:
        """Send a row of the hostile suite."""
        await self._send_row(self._random.choice(ROWS))

    async def _send_row(self, row: Row) -> None:
        # What is stored stays, and the models are needed.
        if not any(part in row.path for part in ("{", "/models/", "/responses", "/conversations")):
            await self._post(row.path, await asyncio.to_thread(row.data), row.headers)

    async def _chat(self, **fields: Any) -> None:
        body = {"model": "pocket", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **fields}
        await self._post("/v1/chat/completions", json.dumps(body).encode(), {})

    async def _post(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        async with httpx2.AsyncClient(base_url=self._url, timeout=_PATIENCE) as client:
            found = await client.post(
                path, content=body, headers={"content-type": "application/json", **headers}
            )
        assert found.status_code < 500 or found.status_code == 503, (
            path,
            found.status_code,
            found.text[:300],
        )
