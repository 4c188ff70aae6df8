"""The outermost layer treats every request alike, whichever route it takes.

Laws:
    1. Every answer carries one request id, which is also in the scope, and the two headers of OpenAI's service.
    2. Metrics label an operation's path by its template, and every path that is no operation by `other`.
    3. Without a key, a request reaches the application only on the open paths.
    4. A POST reaches the application if and only if its size, encoding and type are acceptable.
    5. Every request is counted as opened and as closed, with its status, even if the application raises.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.contract._generated import OPERATIONS
from plumbline.contract.wire.errors import ApiError
from plumbline.server.http.middleware.bodies import _DRAIN_LIMIT
from plumbline.server.http.middleware.front import Front
from plumbline.server.http.streams import close_with_request
from plumbline.server.limits.draining import PROBES
from plumbline.server.limits.keys import KeyRing
from plumbline.server.observe.routes import route_of

MAX_BYTES = 1000
OK: list[dict[str, Any]] = [
    {"type": "http.response.start", "status": 200, "headers": []},
    {"type": "http.response.body"},
]


class Counts:
    """As much of the metrics as the front uses."""

    def __init__(self) -> None:
        self.open = 0
        self.answered: list[tuple[str, int]] = []

    def opened(self) -> None:
        self.open += 1

    def closed(self, path: str, status: int, error: str) -> None:
        self.open -= 1
        self.answered.append((path, status))


class Visit:
    """One request to a front around an application that answers 200, or does what a test wants."""

    def __init__(
        self,
        scope: dict[str, Any],
        *,
        keys: tuple[str, ...] = (),
        body: list[bytes] | None = None,
        handler: Callable[..., Awaitable[None]] | None = None,
        **options: Any,
    ) -> None:
        self.scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], **scope}
        self.counts = Counts()
        self.calls = 0
        self.sent: list[Any] = []
        self.left = [{"type": "http.request", "body": part, "more_body": True} for part in body or []]
        self._handler = handler
        self.front = Front(
            self._app,
            keys=KeyRing(keys),
            metrics=self.counts,  # type: ignore[arg-type]
            max_body_bytes=MAX_BYTES,
            **options,
        )

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        if self._handler is not None:
            await self._handler(scope, receive, send)
            return
        for message in OK:
            await send(dict(message))

    async def _receive(self) -> Any:
        return self.left.pop(0) if self.left else {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self, receive: Any = None) -> Visit:
        await self.front(self.scope, receive or self._receive, self._send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        found = dict(self.sent[0]["headers"])
        assert len(found) == len(self.sent[0]["headers"]), "a header was sent twice"
        return found


def visit(scope: dict[str, Any], **options: Any) -> Visit:
    return asyncio.run(Visit(scope, **options).run())


def post(headers: dict[str, str], **options: Any) -> Visit:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return visit({"method": "POST", "path": "/v1/responses", "headers": pairs}, **options)


# Headers


@pytest.mark.parametrize("keys", [(), ("key",)], ids=["answered", "refused"])
def test_every_answer_carries_an_id_and_a_time(keys: tuple[str, ...]) -> None:
    """Law 1; HTTP-03, HTTP-04."""
    first, second = visit({}, keys=keys), visit({}, keys=keys)

    assert first.status == (401 if keys else 200)
    assert re.fullmatch(rb"req_[0-9a-f]{32}", first.headers[b"x-request-id"])
    assert first.headers[b"x-request-id"] != second.headers[b"x-request-id"]
    assert first.headers[b"x-request-id"].decode() == first.scope["state"]["request_id"]
    assert first.headers[b"openai-processing-ms"].isdigit()
    assert first.headers[b"openai-version"] == b"2020-10-01"


# Labels

ids = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1)


@given(st.sampled_from(OPERATIONS), ids, ids)
def test_an_operation_is_counted_by_its_template(operation: Any, first: str, second: str) -> None:
    """Law 2; MOD-02: the id of a model may contain slashes."""
    label = re.sub(r"\{\w+\}", "{id}", operation.path)
    fixed = {op.path for op in OPERATIONS}
    for value in (first, f"{first}/{second}" if "{model}" in operation.path else second):
        path = re.sub(r"\{\w+\}", value.replace("\\", r"\\"), operation.path)
        if path == operation.path or path not in fixed:
            assert route_of(path) == label


@given(st.text() | st.lists(st.sampled_from(["v1", "models", "responses", "x", "cancel", ""])).map("/".join))
def test_a_path_that_is_no_operation_makes_no_time_series(path: str) -> None:
    """Law 2: the labels that clients can cause are those of the contract."""
    templates = {re.sub(r"\{\w+\}", "{id}", op.path) for op in OPERATIONS}

    assert route_of(path) in templates | {"other"}


@pytest.mark.parametrize(
    "path", ["", "/", "/v1", "/v1/models/", "/v1/responses/x/nowhere", "/v1/chat", "/HEALTH"]
)
def test_an_unknown_path_is_counted_as_other(path: str) -> None:
    """Law 2."""
    assert route_of(path) == "other"


# Keys


@pytest.mark.parametrize("path", [*sorted(PROBES), "/v1/models", "/", "/health/", "/nowhere"])
def test_only_open_paths_need_no_key(path: str) -> None:
    """Law 3; HTTP-06: without a key an unknown path looks like a known one."""
    found = visit({"path": path}, keys=("key",))
    allowed = visit({"path": path, "headers": [(b"authorization", b"Bearer key")]}, keys=("key",))

    assert (found.status, found.calls) == ((200, 1) if path in PROBES else (401, 0))
    assert (allowed.status, allowed.calls) == (200, 1)


def test_open_paths_are_operations() -> None:
    assert {op.path for op in OPERATIONS} >= PROBES


# Bodies


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"content-length": str(MAX_BYTES)}, 200),
        ({"content-length": str(MAX_BYTES + 1)}, 413),
        ({"content-length": "x"}, 200),  # The HTTP parser refuses it before it gets here.
        ({"content-encoding": "identity"}, 200),
        ({"content-encoding": " IDENTITY "}, 200),
        ({"content-encoding": "gzip"}, 415),
        ({"content-encoding": "identity, gzip"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "Application/JSON"}, 200),
        ({"content-type": "application/vnd.x+json"}, 200),
        ({"content-type": "text/json"}, 415),
        ({"content-type": "application/jsonx"}, 415),
        ({"content-type": "\xff"}, 415),
    ],
)
def test_a_body_is_refused_by_its_headers(headers: dict[str, str], status: int) -> None:
    """Law 4; HTTP-08."""
    found = post(headers)

    assert (found.status, found.calls) == (status, int(status == 200))
    get = visit({"headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]})
    assert get.status == 200, "only POST has a body here"


def test_a_refused_body_is_read_for_a_while() -> None:
    """A client that is still sending would see a reset instead of the 413; one that never ends is dropped."""
    part = b"x" * 500
    short = post({"content-length": "5000"}, body=[part] * 3)
    endless = post({"content-length": "5000"}, body=[part] * 100)

    assert (short.status, short.left) == (413, [])
    assert endless.status == 413
    assert len(endless.left) == 100 - _DRAIN_LIMIT * MAX_BYTES // 500


async def test_a_body_that_stalls_is_a_408() -> None:
    """A connection that brings nothing is not worth its place."""
    parts = [{"type": "http.request", "body": b"x", "more_body": True}]

    async def receive() -> Any:
        if parts:
            return parts.pop()
        return await asyncio.Future()

    async def read(_: Any, receive: Any, __: Any) -> None:
        while True:
            await receive()

    with pytest.raises(ApiError, match=r"or too little, arrived for 0\.01 seconds") as caught:
        await Visit({"method": "POST"}, handler=read, body_timeout=0.01).run(receive)
    assert (caught.value.status, caught.value.code) == (408, "request_timeout")
    assert caught.value.headers == {"Connection": "close"}


async def test_waiting_for_the_disconnect_has_no_time_limit() -> None:
    """HTTP-11: after the body is complete, the next message is the disconnect, minutes later."""
    parts = [{"type": "http.request", "body": b"x"}]
    gone = asyncio.Event()

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def read(_: Any, receive: Any, __: Any) -> None:
        assert (await receive())["body"] == b"x"
        asyncio.get_running_loop().call_later(0.05, gone.set)
        assert (await receive())["type"] == "http.disconnect"

    assert (await Visit({"method": "POST"}, handler=read, body_timeout=0.01).run(receive)).calls == 1


# Counting and closing


@pytest.mark.parametrize(("keys", "status"), [((), 200), (("key",), 401)])
def test_every_request_is_counted(keys: tuple[str, ...], status: int) -> None:
    """Law 5."""
    found = visit({"path": "/v1/models/a"}, keys=keys)

    assert (found.counts.open, found.counts.answered) == (0, [("/v1/models/{id}", status)])


async def test_a_request_without_an_answer_is_a_499() -> None:
    """Law 5: the client left, or the application raised, before there was a status."""

    async def leave(*_: Any) -> None:
        return

    async def fail(*_: Any) -> None:
        raise RuntimeError("It broke.")

    left, failed = Visit({}, handler=leave), Visit({}, handler=fail)
    await left.run()
    with pytest.raises(RuntimeError):
        await failed.run()

    for found in (left, failed):
        assert (found.counts.open, found.counts.answered) == (0, [("other", 499)])


async def test_streams_are_closed_when_the_request_is_over() -> None:
    """HTTP-11."""
    closed: list[str] = []

    async def close(name: str) -> None:
        closed.append(name)

    async def handler(_: Any, __: Any, send: Any) -> None:
        close_with_request(lambda: close("first"))
        close_with_request(lambda: close("second"))
        await send(dict(OK[0]))
        assert not closed

    await Visit({}, handler=handler).run()

    assert closed == ["second", "first"]


def test_what_is_not_http_passes_through() -> None:
    found = visit({"type": "lifespan"})

    assert found.calls == 1
    assert found.counts.answered == []
    assert found.sent == OK
