"""An ASGI client that sees every message by itself and can leave at any moment."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from plumbline.server.loading.catalog import Catalog, only
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.loading.storage import build_store
from plumbline.server.settings import Settings
from support.servers.shared_routes import create_app

__all__ = ["Answer", "Event", "Exchange", "Server", "as_catalog", "read_events", "serving"]


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_CODES = {
    401: "invalid_api_key",
    404: "model_not_found",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
    529: "engine_unavailable",
}


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """A header's value; it must not be there twice."""
        found = [value for key, value in self.headers if key == name]
        assert len(found) < 2, f"{name} was sent {len(found)} times"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the envelope, checked for its shape (ERR-01).

        That of Messages (MSG-11) has fewer members. They are translated, so that tests of all APIs read them: the
        parameter is the first name that the message quotes, the code belongs to the status.
        """
        body = self.json
        if set(body) == {"type", "error", "request_id"}:
            assert body["request_id"] == self.header("x-request-id") == self.header("request-id")
            found: dict[str, Any] = body["error"]
            assert set(found) - {"details"} == {"type", "message"}
            name = re.search(r"'([\w.\[\]]+)'", found["message"])
            assert found["type"] == _TYPES[self.status]
            kind = "invalid_request_error" if self.status < 429 else found["type"]
            code = _CODES.get(self.status)
            return {"message": found["message"], "type": kind, "param": name and name[1], "code": code}
        assert set(body) == {"error"}
        error: dict[str, Any] = body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        assert isinstance(error["type"], str)
        assert self.header("content-type") == "application/json"
        return error

    @property
    def events(self) -> list[Event]:
        """The body as server-sent events."""
        return read_events([self.body])


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    name: str | None
    data: str

    @property
    def json(self) -> Any:
        """The decoded data."""
        return json.loads(self.data)


def read_events(writes: Sequence[bytes]) -> list[Event]:
    """The events of a stream, by the letter of SSE-01 to SSE-08; comments are left out."""
    whole = b"".join(writes)
    assert b"\r" not in whole
    text = whole.decode()
    assert text.endswith("\n\n")
    found: list[Event] = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            assert "\n" not in block
            continue
        lines = block.split("\n")
        name = None
        if lines[0].startswith("event: "):
            name = lines.pop(0).removeprefix("event: ")
        assert len(lines) == 1, f"one data line an event, got {block!r}"
        assert lines[0].startswith("data: ")
        found.append(Event(name, lines[0].removeprefix("data: ")))
    return found


@dataclass
class Exchange:
    """A request on its way: what the application sends, message by message."""

    sent: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)

    async def begin(self) -> None:
        """Wait for the status line."""
        message = await self._next()
        assert message is not None
        assert message["type"] == "http.response.start"
        self.status = message["status"]
        self.headers = [(name.decode(), value.decode()) for name, value in message["headers"]]

    async def writes(self) -> AsyncIterator[bytes]:
        """The body, one write of the application after the other."""
        if not self.status:
            await self.begin()
        while (message := await self._next()) is not None:
            assert message["type"] == "http.response.body"
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                break
        await self.finished()

    async def answer(self) -> Answer:
        """Read everything."""
        await self.begin()
        body = b"".join([write async for write in self.writes()])
        return Answer(self.status, self.headers, body)

    def leave(self) -> None:
        """The client closes the connection."""
        self.gone.set()

    async def finished(self) -> None:
        """Wait until the application is done with this request."""
        assert self.task is not None
        async with asyncio.timeout(20):
            await asyncio.gather(self.task, return_exceptions=False)

    async def _next(self) -> dict[str, Any] | None:
        async with asyncio.timeout(20):
            return await self.sent.get()


class Server:
    """The application, without a socket."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._tasks = asyncio.all_tasks()

    async def tasks_left(self) -> set[asyncio.Task[Any]]:
        """Tasks that requests have left behind, after everything that still can run has had its turn."""
        for _ in range(20):
            await asyncio.sleep(0)
        return asyncio.all_tasks() - self._tasks

    def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        chunks: Sequence[bytes] | None = None,
    ) -> Exchange:
        """Send a request; its body is JSON, bytes, or chunks without a content length."""
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        parts = list(chunks) if chunks is not None else [raw]
        given = {"host": "localhost", **(headers or {})}
        if method == "POST":
            given.setdefault("content-type", "application/json")
            if chunks is None:
                given.setdefault("content-length", str(len(raw)))
        path, _, query = path.partition("?")
        exchange = Exchange()
        messages = [
            {"type": "http.request", "body": part, "more_body": index < len(parts) - 1}
            for index, part in enumerate(parts)
        ]
        complete = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop(0)
            # As uvicorn does: a disconnect is what comes when the client has gone, or the response is complete.
            waits = [asyncio.ensure_future(event.wait()) for event in (exchange.gone, complete)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if exchange.gone.is_set():
                return
            exchange.log.append(message)
            exchange.sent.put_nowait(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                complete.set()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }

        async def run() -> None:
            try:
                await self.app(scope, receive, send)
            finally:
                exchange.sent.put_nowait(None)

        exchange.task = asyncio.ensure_future(run())
        return exchange

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """Send a request and read the whole answer."""
        return await self.open(method, path, body, **options).answer()

    async def get(self, path: str, **options: Any) -> Answer:
        """GET."""
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        """POST."""
        return await self.request("POST", path, body, **options)


def as_catalog(model: ServedModel | Catalog) -> Catalog:
    """The catalog of a server with this model."""
    return model if isinstance(model, Catalog) else only(model)


@asynccontextmanager
async def serving(model: ServedModel | Catalog, **changes: Any) -> AsyncGenerator[Server, None]:
    """Run the application's lifespan around some requests. Streams are primed without a time limit by default."""
    settings = Settings(**{"keep_alive_interval": 0.0, **changes})
    app = create_app(as_catalog(model), settings, build_store(settings))
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    lifespan = asyncio.ensure_future(
        app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, inbox.get, outbox.put)
    )
    inbox.put_nowait({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    try:
        yield Server(app)
    finally:
        inbox.put_nowait({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await lifespan
