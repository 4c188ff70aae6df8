"""List what the formats allow a server to do differently: SSE (WHATWG), HTTP (RFC 9110, 9112) and JSON (RFC 8259).

Each row changes the bytes of an answer, never its meaning. No check of the judge may fail because of one, and no client
may break.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["FORMATS", "Change", "Variation", "changed", "is_stream", "with_body"]

Change = Callable[[Exchange], Exchange]


class Variation(msgspec.Struct, frozen=True):
    """One thing that a specification allows."""

    allowed_by: str
    name: str
    change: Change
    warns: tuple[str, ...] = ()
    """Rules of level SHOULD that name it, because it breaks real clients."""


def changed(exchange: Exchange, **changed: Any) -> Exchange:
    """Return the exchange with other members, and without values cached from the old bytes."""
    kept = {name: getattr(exchange, name) for name in exchange.__struct_fields__}
    return Exchange(**{**kept, **changed})


def with_body(exchange: Exchange, content: bytes) -> Exchange:
    """Return the exchange with this body, in one read."""
    return changed(exchange, frames=[(0.0, content)])


def is_stream(exchange: Exchange) -> bool:
    """Return whether an answer is a stream of events."""
    return b"data: " in exchange.body and "event-stream" in (exchange.header("content-type") or "")


def _stream(change: Callable[[bytes], bytes]) -> Change:
    """Change the bytes of a stream; other answers stay as they are."""
    return lambda e: _cut_like(e, change(e.body)) if is_stream(e) else e


def _cut_like(exchange: Exchange, content: bytes) -> Exchange:
    """Give the frames of a changed body the times that the lines had."""
    if len(exchange.frames) < 2:
        return with_body(exchange, content)
    blocks = [part for part in re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)|(?<=\r\r)", content) if part]
    last = len(exchange.frames) - 1
    frames = [
        (exchange.frames[min(last, place * len(exchange.frames) // len(blocks))][0], block)
        for place, block in enumerate(blocks)
    ]
    return changed(exchange, frames=frames)


def _lines(content: bytes, change: Callable[[bytes], Iterable[bytes]]) -> bytes:
    return b"\n".join(new for line in content.split(b"\n") for new in change(line))


def _data_lines(change: Callable[[bytes], Iterable[bytes]]) -> Change:
    """Replace each `data` line of a stream that has JSON by these lines."""

    def each(line: bytes) -> Iterable[bytes]:
        return change(line) if line.startswith(b"data: {") else [line]

    return _stream(lambda content: _lines(content, each))


def _over_lines(line: bytes) -> Iterable[bytes]:
    """Write the JSON of an event over several `data` lines."""
    text = json.dumps(json.loads(line.removeprefix(b"data: ")), indent=1)
    return [b"data: " + part.encode() for part in text.split("\n")]


def _json(write: Callable[[Any], str]) -> Change:
    """Write every JSON value of an answer, an event or a message in another way."""

    def rewritten(content: bytes) -> bytes:
        try:
            return write(json.loads(content)).encode("utf-8", "surrogatepass")
        except ValueError:
            return content

    def line(old: bytes) -> Iterable[bytes]:
        return [b"data: " + rewritten(old.removeprefix(b"data: "))] if old.startswith(b"data: {") else [old]

    def change(exchange: Exchange) -> Exchange:
        if exchange.method == "WEBSOCKET":
            return changed(exchange, frames=[(at, rewritten(frame)) for at, frame in exchange.frames])
        if is_stream(exchange):
            return _cut_like(exchange, _lines(exchange.body, line))
        return with_body(exchange, rewritten(exchange.body)) if exchange.body else exchange

    return change


def _escaped(value: Any) -> str:
    """Escape every character of every string, and slashes."""
    plain = json.dumps(value)
    return re.sub(
        r'"(?:[^"\\]|\\.)*"',
        lambda found: '"' + "".join(f"\\u{unit:04x}" for unit in _units(json.loads(found[0]))) + '"',
        plain,
    )


def _units(text: str) -> list[int]:
    encoded = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(encoded[place : place + 2]) for place in range(0, len(encoded), 2)]


def _reversed(value: Any) -> Any:
    match value:
        case dict():
            return {key: _reversed(value[key]) for key in reversed(value)}
        case list():
            return [_reversed(member) for member in value]
    return value


def _numbers(form: Callable[[str], str]) -> Callable[[Any], str]:
    """Write the integers outside of strings in another notation."""

    def write(value: Any) -> str:
        return re.sub(
            r'"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d+(?![\d.eE])',
            lambda found: found[0] if found[0].startswith('"') else form(found[0]),
            json.dumps(value),
        )

    return write


def _shifted(digits: str) -> str:
    """Write 120 as 12e1, and 5 as 50E-1."""
    if not digits.strip("-0"):
        return f"{digits}E-1"
    shorter = digits.rstrip("0")
    if shorter == digits:
        return f"{digits}0E-1"
    return f"{shorter}e+{len(digits) - len(shorter)}"


def _headers(change: Callable[[str, str], Iterable[tuple[str, str]]]) -> Change:
    return lambda e: changed(e, headers=[pair for name, value in e.headers for pair in change(name, value)])


def _kind(change: Callable[[str], str]) -> Change:
    """Change the value of the content type."""
    return _headers(lambda name, value: [(name, change(value) if name.lower() == "content-type" else value)])


def _further(exchange: Exchange) -> Exchange:
    """Add headers of gateways."""
    more = [("server", "nginx"), ("via", "1.1 a, 1.1 b"), ("set-cookie", "a=b"), ("set-cookie", "c=d")]
    more += [
        ("alt-svc", 'h3=":443"'),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
        ("age", "0"),
    ]
    return changed(exchange, headers=[*more, *exchange.headers])


def _bytewise(exchange: Exchange) -> Exchange:
    """Cut the body after every byte; the end of a frame keeps its time."""
    if exchange.method == "WEBSOCKET":
        return exchange
    return changed(
        exchange,
        frames=[
            (at, frame[place : place + 1]) for at, frame in exchange.frames for place in range(len(frame))
        ],
    )


def _sevens(exchange: Exchange) -> Exchange:
    """Cut the body every seven bytes, within events and characters."""
    if exchange.method == "WEBSOCKET":
        return exchange
    return changed(
        exchange,
        frames=[
            (at, frame[place : place + 7])
            for at, frame in exchange.frames
            for place in range(0, len(frame), 7)
        ],
    )


def _empty_frames(exchange: Exchange) -> Exchange:
    if exchange.method == "WEBSOCKET":
        return exchange
    return changed(
        exchange, frames=[pair for at, frame in exchange.frames for pair in ((at, b""), (at, frame))]
    )


SSE, HTTP, JSON = "WHATWG HTML 9.2", "RFC 9110/9112", "RFC 8259"
FORMATS: tuple[Variation, ...] = (
    Variation(
        SSE, "carriage returns and line feeds", _stream(lambda b: b.replace(b"\n", b"\r\n")), ("SSE-02",)
    ),
    Variation(SSE, "carriage returns", _stream(lambda b: b.replace(b"\n", b"\r")), ("SSE-02",)),
    Variation(SSE, "mixed line ends", _stream(lambda b: b.replace(b"\n\n", b"\r\n\n", 3)), ("SSE-02",)),
    Variation(SSE, "a byte order mark", _stream(lambda b: b"\xef\xbb\xbf" + b), ("SSE-02",)),
    Variation(SSE, "no space after colons", _stream(lambda b: re.sub(rb"(?m)^(data|event): ", rb"\1:", b))),
    Variation(SSE, "two spaces after colons", _data_lines(lambda line: [line.replace(b": ", b":  ", 1)])),
    Variation(SSE, "comments between events", _stream(lambda b: b.replace(b"\n\n", b"\n\n: ping\n\n"))),
    Variation(
        SSE, "comments within events", _stream(lambda b: b.replace(b"data: ", b":\n: data: x\ndata: "))
    ),
    Variation(SSE, "a comment before everything", _stream(lambda b: b":" + b" " * 2048 + b"\n\n" + b)),
    Variation(SSE, "several blank lines", _stream(lambda b: b"\n\n" + b.replace(b"\n\n", b"\n\n\n\n"))),
    Variation(SSE, "a retry line in an event", _stream(lambda b: b"retry: 1500\n" + b)),
    Variation(SSE, "a retry block", _stream(lambda b: b"retry: 1500\n\n" + b), ("SSE-03",)),
    Variation(SSE, "a retry that is no number", _stream(lambda b: b"retry: soon\n" + b)),
    Variation(SSE, "ids", _stream(lambda b: re.sub(rb"(?m)^data: ", b"id: 7\ndata: ", b)), ("SSE-03",)),
    Variation(SSE, "an id block", _stream(lambda b: b"id\n\n" + b), ("SSE-03",)),
    Variation(
        SSE, "unknown fields", _stream(lambda b: re.sub(rb"(?m)^data: ", b"trace: 1\nnote\ndata: ", b))
    ),
    Variation(SSE, "empty data lines", _data_lines(lambda line: [b"data:", line, b"data"])),
    Variation(SSE, "a block of empty data", _stream(lambda b: b"data:\n\n" + b), ("SSE-03",)),
    Variation(SSE, "JSON over several data lines", _data_lines(_over_lines)),
    Variation(
        SSE, "the name after the data", _stream(lambda b: re.sub(rb"(event: .*\n)(data: .*\n)", rb"\2\1", b))
    ),
    Variation(SSE, "an event name twice", _stream(lambda b: re.sub(rb"(event: .*\n)", rb"event: x\n\1", b))),
    Variation(HTTP, "a cut after every byte", _bytewise),
    Variation(HTTP, "cuts within events", _sevens),
    Variation(HTTP, "empty reads", _empty_frames),
    Variation(HTTP, "header names in capitals", _headers(lambda name, value: [(name.upper(), value)])),
    Variation(HTTP, "header names in title case", _headers(lambda name, value: [(name.title(), value)])),
    Variation(HTTP, "headers in another order", lambda e: changed(e, headers=e.headers[::-1])),
    Variation(HTTP, "headers of gateways", _further),
    Variation(HTTP, "a charset", _kind(lambda value: f"{value.partition(';')[0]}; charset=utf-8")),
    Variation(HTTP, "a quoted charset", _kind(lambda value: f'{value.partition(";")[0]};Charset="UTF-8"')),
    Variation(
        HTTP, "spaces in the content type", _kind(lambda value: f"{value.partition(';')[0]} ; charset=utf-8")
    ),
    Variation(HTTP, "a media type in capitals", _kind(lambda value: value.upper())),
    Variation(JSON, "white space", _json(lambda v: " \t" + json.dumps(v, separators=(" , ", " : ")) + "  ")),
    Variation(JSON, "no white space", _json(lambda v: json.dumps(v, separators=(",", ":")))),
    Variation(JSON, "raw characters", _json(lambda v: json.dumps(v, ensure_ascii=False))),
    Variation(JSON, "escapes", _json(lambda v: json.dumps(v))),
    Variation(JSON, "every character escaped", _json(_escaped)),
    Variation(JSON, "escaped slashes", _json(lambda v: json.dumps(v).replace("/", "\\/"))),
    Variation(JSON, "members in another order", _json(lambda v: json.dumps(_reversed(v)))),
    Variation(JSON, "members by name", _json(lambda v: json.dumps(v, sort_keys=True))),
    Variation(JSON, "integers with a point", _json(_numbers(lambda digits: f"{digits}.0"))),
    Variation(JSON, "integers with an exponent", _json(_numbers(lambda digits: f"{digits}e0"))),
    Variation(JSON, "integers with a shifted exponent", _json(_numbers(_shifted))),
)
