"""Define what the page sends to be judged, and what it gets back."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

__all__ = [
    "MOST_BYTES",
    "JudgedEvent",
    "JudgedExchange",
    "JudgedFinding",
    "JudgedRule",
    "JudgedText",
    "Judgement",
    "SchemaProblem",
    "SchemaVerdict",
]

MOST_BYTES = 2 * 1024**2
"""Of the request and the answer of one exchange together."""

Header = tuple[Annotated[str, Meta(max_length=256)], Annotated[str, Meta(max_length=8192)]]


class JudgedExchange(msgspec.Struct, kw_only=True, tag="exchange"):
    """One request of the page and the answer as it came. Bytes are base64 in JSON."""

    path: Annotated[str, Meta(pattern="^/v1/[a-z/_]{1,64}$", max_length=80)]
    request: bytes
    status: Annotated[int, Meta(ge=100, le=599)]
    headers: Annotated[list[Header], Meta(max_length=100)] = []
    frames: Annotated[list[tuple[Annotated[float, Meta(ge=0)], bytes]], Meta(max_length=20_000)]
    """Seconds since the request, and the bytes of each read."""
    complete: bool = True
    """False while the stream runs: only problems at an event are reported then."""


class JudgedText(msgspec.Struct, tag="text"):
    """The text of an answer, and the schema that it should match."""

    schema: dict[str, Any] | bool
    text: Annotated[str, Meta(max_length=MOST_BYTES)]


class SchemaProblem(msgspec.Struct):
    """A part of a text that its schema does not allow."""

    pointer: str
    message: str


class SchemaVerdict(msgspec.Struct):
    """What is wrong with a text; nothing if it matches its schema."""

    problems: list[SchemaProblem]


class JudgedRule(msgspec.Struct):
    """A rule of the contract."""

    level: str
    sentence: str


class JudgedFinding(msgspec.Struct):
    """One problem."""

    rule: str
    check: str
    title: str
    verdict: str
    expected: str
    actual: str
    pointer: str
    event: int | None
    """The index of the event that it is about; None if it is about the whole answer."""


class JudgedEvent(msgspec.Struct):
    """What the contract says about one event."""

    rules: list[str]
    """The rules about its members, the most particular one first."""


class Judgement(msgspec.Struct):
    """The result of judging an exchange."""

    events: list[JudgedEvent]
    findings: list[JudgedFinding]
    rules: dict[str, JudgedRule]
    checks: int
    """How many checks looked at the exchange."""
    passed: int
