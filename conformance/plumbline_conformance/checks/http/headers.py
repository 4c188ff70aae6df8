"""Check what HTTP itself requires of every answer: its headers, its bytes and its connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial

from plumbline_conformance.checks.answers import is_stream
from plumbline_conformance.checks.common import accepted, answered, at, json_content_type, required
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.checks.sample_requests import JSON, chat
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    about,
    breaking,
    check,
    scenario,
)
from plumbline_conformance.transcript.exchange import UNABLE, Exchange, Transcript
from plumbline_conformance.transcript.sse import BYTE_ORDER_MARK

Steps = Generator[Request, Exchange, None]
CODINGS = {"identity", "gzip", "x-gzip", "deflate"}
"""The codings that the judge accepts."""
CLOSED = "RemoteProtocolError: Server disconnected without sending a response"
"""The error of httpx2 for a connection that ends before the first byte of an answer."""
ONCE = ("content-type", "content-length")
SCENARIOS = (
    *("chat/text", "chat/stream-text", "completions/text", "responses/stream-text", "messages/text"),
    *("models/list", "errors/broken-json"),
)

JSON_ANSWERS = (
    *("models/list", "chat/stored", "responses/stored", "responses/count", "responses/compact"),
    *("responses/conversation-item", "responses/background-cancel", "messages/text", "messages/count"),
)
"""Scenarios with whole answers of each operation that no other check asks for their media type."""
JSON_REFUSALS = ("errors/wrong-types", "errors/responses-types", "messages/refused")


def _headers(exchange: Exchange) -> Iterator[Problem]:
    """Check headers that may not be repeated, and the beginning of JSON."""
    names = Counter(name.lower() for name, _ in exchange.headers)
    for name in ONCE:
        if names[name] > 1:
            yield Problem(expected="one header", actual=str(names[name]), pointer=f"headers.{name}")
    if names["content-length"] and names["transfer-encoding"]:
        wanted = "content-length or transfer-encoding"
        yield Problem(expected=wanted, actual="both", pointer="headers.transfer-encoding")
    # Before an event stream it is allowed.
    if exchange.body.startswith(BYTE_ORDER_MARK) and not is_stream(exchange):
        yield Problem(expected="no byte order mark", actual="one", pointer="body")


def _coding(exchange: Exchange) -> Iterator[Problem]:
    """Check the coding: a SHOULD, because RFC 9110 lets a server that has no other one send it (section 12.5.3)."""
    coding = exchange.header("content-encoding") or "identity"
    if not {one.strip().lower() for one in coding.split(",")} <= CODINGS:
        wanted = "a coding that the client accepts"
        yield Problem(expected=wanted, actual=coding[:100], pointer="headers.content-encoding")


def _every_answer(seen: Transcript, law: Callable[[Exchange], Iterator[Problem]]) -> Iterator[Problem]:
    refusing = seen.scenario.startswith("errors/")
    found = [one for one in seen.exchanges if _wanted(one, refusing=refusing)]
    for exchange in found:
        yield from about(exchange, law(exchange))
    if not found:
        for exchange in seen.exchanges:
            # It was refused, it failed, or the connection broke.
            _ = answered(exchange) if refusing else accepted(exchange)
        raise Inconclusive("no request was refused" if refusing else "no request was answered")


def _wanted(exchange: Exchange, *, refusing: bool) -> bool:
    """Return whether this is a whole answer, or a refusal; other checks report failures."""
    if exchange.error is not None or exchange.status in (*UNABLE, 401, 403):
        return False
    return 400 <= exchange.status < 500 if refusing else exchange.status == 200


for _slug in SCENARIOS:
    check(f"{_slug}/headers", "Send each header once", "HTTP-18")(partial(_every_answer, law=_headers))
    check(f"{_slug}/coding", "Send a coding that the client accepts", "HTTP-21")(
        partial(_every_answer, law=_coding)
    )


def _json_answer(exchange: Exchange) -> Iterator[Problem]:
    """Check a whole answer: clients read JSON only from a body that is called so."""
    if not is_stream(exchange):
        yield from json_content_type(exchange)


def _json_refusals(seen: Transcript) -> Iterator[Problem]:
    """Check refusals that are JSON: a SHOULD, because clients try to read them as JSON whatever they are called."""
    found = [one for one in seen.exchanges if _wanted(one, refusing=True) and one.json is not None]
    for exchange in found:
        yield from about(exchange, breaking("ERR-01", json_content_type(exchange)))
    if not found:
        for exchange in seen.exchanges:
            _ = answered(exchange)
        raise Inconclusive("no refusal is JSON")


for _slug in JSON_ANSWERS:
    check(f"{_slug}/json", "Send every answer as application/json", "HTTP-01")(
        partial(_every_answer, law=_json_answer)
    )
for _slug in JSON_REFUSALS:
    check(f"{_slug}/json", "Send refusals as application/json", "ERR-01", milder=True)(_json_refusals)


@scenario("chat/http10", "An answer by HTTP/1.0")
def http10(target: Target) -> Steps:
    for name, fields in ((WHOLE, {}), (STREAM, {"stream": True})):
        yield Request(name=name, path="/chat/completions", json=chat(target, **fields), version="1.0")


def _spoken(seen: Transcript) -> None:
    found = at(seen, WHOLE)
    if found.status in (426, 505):
        raise Rejected(f"the server refuses HTTP/1.0: status {found.status}")


# Not laws of single exchanges: `watch` does not know by which version a live request came.
@check("chat/http10/unchunked", "Answer HTTP/1.0 without chunks, or refuse it", "HTTP-20")
def unchunked(seen: Transcript) -> Iterator[Problem]:
    """Check that the body ends with its length or with the connection (HTTP-20)."""
    _spoken(seen)
    yield from _unchunked(accepted(at(seen, WHOLE)))


@check("chat/http10/stream-unchunked", "Stream by HTTP/1.0 without chunks, or refuse it", "HTTP-20")
def stream_unchunked(seen: Transcript) -> Iterator[Problem]:
    """Check that the stream ends with its length or with the connection (HTTP-20)."""
    _spoken(seen)
    yield from _unchunked(accepted(at(seen, STREAM)))


def _unchunked(exchange: Exchange) -> Iterator[Problem]:
    if (coding := exchange.header("transfer-encoding")) is not None:
        yield Problem(
            expected="no transfer coding",
            actual=coding[:100],
            pointer="headers.transfer-encoding",
            exchange=exchange.name,
        )


@scenario("chat/connection", "Requests on one connection, after answers of each kind")
def connection(target: Target) -> Steps:
    """Send a valid request after an answer, two refusals and a stream, all on a connection that may be kept."""

    def on(name: str, **fields: object) -> Request:
        given = {"path": "/chat/completions", "socket": "kept", **fields}
        return Request(name=name, **given)  # type: ignore[arg-type]

    yield on(WHOLE, json=chat(target))
    yield on("after/1", json=chat(target))
    yield on("broken", content=b'{"model": "x", "messages": [', headers=JSON)
    yield on("after/2", json=chat(target))
    yield on("unknown", path="/models/no-model-0f3a", method="GET")
    yield on("after/3", json=chat(target))
    yield on(STREAM, json=chat(target, stream=True))
    yield on("after/4", json=chat(target))


@check("chat/connection/served", "Serve the next request on a connection that is kept open", "HTTP-19")
def connection_served(seen: Transcript) -> Iterator[Problem]:
    """A server may close the connection after any answer; if it does not, the next answer must be whole.

    It may close it without notice (RFC 9112, section 9.5), also while the next request is on its way.
    """
    accepted(at(seen, WHOLE))
    for number in range(1, 5):
        found = at(seen, f"after/{number}")
        if (found.error or "").startswith(CLOSED):
            raise Inconclusive("the server closed the connection while the next request was sent")
        if (found.error or "").startswith("RemoteProtocolError"):
            yield Problem(
                expected="an answer", actual=found.error or "", pointer="connection", exchange=found.name
            )
            return
        required(lambda found=found: accepted(found))  # type: ignore[misc]
