"""Compare two answers to the same request, and name the rule that each difference is about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import msgspec

from plumbline_conformance.differential.answer import ComparedAnswer
from plumbline_conformance.differential.probes import Probe
from plumbline_conformance.suite.contract import rule_of_difference

__all__ = ["Difference", "compare"]

_LONGEST = 300


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One facet in which two servers differ."""

    rule: str
    facet: str
    probe: str
    a: str
    b: str
    request: dict[str, Any]


def compare(
    probe: Probe, a: ComparedAnswer, b: ComparedAnswer, *, tolerance: float = 0.05
) -> Iterator[Difference]:
    """Yield all differences; if the statuses differ, nothing else is compared.

    Args:
        probe: the request.
        a: the answer of the first server.
        b: the answer of the second server.
        tolerance: how much the logprobs of a token may differ.
    """

    def differ(facet: str, one: object, other: object, rule: str | None = None) -> Difference:
        return Difference(
            rule=rule or rule_of_difference("diff", probe.surface, facet) or "ERR-01",
            facet=facet,
            probe=probe.name,
            a=_shown(one),
            b=_shown(other),
            request=probe.body,
        )

    if a.status != b.status:
        yield differ("status", a.status, b.status, probe.rule or "ERR-02")
        return
    if a.status != 200:
        if a.error != b.error:
            yield differ("error", *_only_different(a.error, b.error), "ERR-01")
        return
    if a.text != b.text:
        where = sum(
            1
            for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.text or "", b.text or "", strict=False))
        )
        yield differ("text", _from(a.text, where), _from(b.text, where))
    if a.finish != b.finish:
        yield differ("finish", a.finish, b.finish)
    if a.usage != b.usage:
        yield differ("usage", a.usage, b.usage)
    if a.grammar != b.grammar:
        yield differ("grammar", a.grammar, b.grammar)
    if a.text == b.text:
        # Where two texts differ, the tokens after that place cannot be compared.
        yield from (
            differ("logprobs", one, other) for one, other in _logprobs(a.logprobs, b.logprobs, tolerance)
        )


def _logprobs(
    a: list[tuple[str, float]] | None, b: list[tuple[str, float]] | None, tolerance: float
) -> Iterator[tuple[object, object]]:
    if a is None or b is None:
        if a is not b:
            yield "none" if a is None else f"{len(a)} entries", "none" if b is None else f"{len(b)} entries"
        return
    if len(a) != len(b):
        yield f"{len(a)} entries", f"{len(b)} entries"
        return
    for place, (one, other) in enumerate(zip(a, b, strict=True)):
        if one[0] != other[0] or not abs(one[1] - other[1]) <= tolerance:
            yield f"entry {place}: {one[0]!r} {one[1]:.4f}", f"entry {place}: {other[0]!r} {other[1]:.4f}"
            return


def _from(text: str | None, where: int) -> str:
    return f"{(text or '')[max(0, where - 20) :]!r} (they part at character {where})"


def _only_different(a: dict[str, str] | None, b: dict[str, str] | None) -> tuple[object, object]:
    if a is None or b is None:
        return a or "no error object", b or "no error object"
    keys = [key for key in sorted({*a, *b}) if a.get(key) != b.get(key)]
    return {key: a.get(key) for key in keys}, {key: b.get(key) for key in keys}


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
