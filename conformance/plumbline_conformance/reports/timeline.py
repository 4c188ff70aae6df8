"""Split a body into events with times, so that a report can point at one."""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import accumulate

import msgspec

from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.transcript.sse import BYTE_ORDER_MARK, parse_events

__all__ = ["Moment", "moments"]

# Match line ends possessively: the two bytes of one CRLF are not a blank line.
_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)+")
_LONGEST = 1200
_HEAD = 40
_TAIL = 8
_AROUND = 3


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One event, comment or body, or a gap where some are left out."""

    kind: str
    """`event`, `comment`, `body` or `gap`."""
    at: float
    """Seconds from the request to its last byte."""
    text: str
    number: int | None = None
    """The number of an event, which problems refer to; None for comments."""
    size: int = 0
    """Bytes on the wire."""


def moments(exchange: Exchange, marked: frozenset[int] = frozenset()) -> list[Moment]:
    """Return the moments of an answer, or the messages of a WebSocket turn.

    Of a long stream, only the beginning, the end and the events around the marks.
    """
    body = exchange.body
    ends = list(accumulate(len(frame) for _, frame in exchange.frames))

    def moment(kind: str, start: int, stop: int, number: int | None) -> Moment:
        text = body[start : min(stop, start + _LONGEST)].decode("utf-8", "replace").rstrip("\r\n")
        if stop - start > _LONGEST:
            text += f" … ({stop - start} bytes)"
        at = exchange.frames[bisect_left(ends, stop)][0]
        return Moment(kind=kind, at=round(at, 6), text=text, number=number, size=stop - start)

    if exchange.method == "WEBSOCKET" and exchange.status == 101:
        starts = [0, *ends][: len(ends)]
        every = [
            moment("event", start, stop, n) for n, (start, stop) in enumerate(zip(starts, ends, strict=True))
        ]
        return _shortened(every, marked)
    if not _is_stream(exchange):
        return [moment("body", 0, len(body), None)] if body else []
    found: list[Moment] = []
    number = 0
    start = 0
    while start < len(body):
        end = _END.search(body, start)
        stop = end.end() if end else len(body)
        # A block of comments is not an event and has no number. A byte order mark counts only at the start.
        if parse_events(body[start:stop] if start == 0 else b"\n" + body[start:stop]):
            found.append(moment("event", start, stop, number))
            number += 1
        elif body[start:stop].strip():
            found.append(moment("comment", start, stop, None))
        start = stop
    return _shortened(found, marked)


def _is_stream(exchange: Exchange) -> bool:
    kind = exchange.header("content-type") or ""
    head = exchange.body[:200].removeprefix(BYTE_ORDER_MARK).lstrip()
    return "event-stream" in kind.lower() or head.startswith((b"data:", b"event:"))


def _shortened(found: list[Moment], marked: frozenset[int]) -> list[Moment]:
    near = {m.number for m in found if m.number is not None and _near(m.number, marked)}
    keep = [
        index < _HEAD or index >= len(found) - _TAIL or moment.number in near
        for index, moment in enumerate(found)
    ]
    short: list[Moment] = []
    for moment, kept in zip(found, keep, strict=True):
        if kept:
            short.append(moment)
        elif short[-1].kind == "gap":
            gap = short[-1]
            short[-1] = msgspec.structs.replace(gap, size=gap.size + moment.size, at=moment.at)
        else:
            short.append(Moment(kind="gap", at=moment.at, text="", size=moment.size))
    return short


def _near(number: int, marked: frozenset[int]) -> bool:
    return any(number in range(place - _AROUND, place + _AROUND + 1) for place in list(marked)[:20])
