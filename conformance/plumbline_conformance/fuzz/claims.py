"""Check properties that hold for the answer to any request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from plumbline_conformance.fuzz.strategies import FuzzedOperation
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.live import judge_live

__all__ = ["Violation", "claims"]


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A violated property. Two answers with the same `name` count as the same fault."""

    name: str
    expected: str
    actual: str
    rules: tuple[str, ...] = ()


def claims(operation: FuzzedOperation, exchange: Exchange) -> Iterator[Violation]:
    """Return the violated properties of an answer."""
    if exchange.status == 0 or exchange.error is not None:
        yield Violation(
            name="answer", expected="an answer", actual=exchange.error or "none", rules=("ERR-02",)
        )
        return
    if exchange.asks_for_later:
        return
    if exchange.status >= 500:
        shown = exchange.body[:200].decode("utf-8", "replace")
        yield Violation(
            name=f"status {exchange.status}",
            expected="no 5xx",
            actual=f"status {exchange.status}: {shown}",
            rules=("ERR-02",),
        )
        return
    if exchange.status not in operation.statuses:
        shown = ", ".join(map(str, sorted(operation.statuses)))
        yield Violation(
            name=f"status {exchange.status}",
            expected=f"one of {shown}",
            actual=f"status {exchange.status}",
            rules=("ERR-02",),
        )
    yield from _of_live_checks(exchange)
    if exchange.status == 200 and not _streams(exchange) and operation.answer is not None:
        for problem in violations(operation.answer, exchange.json):
            yield Violation(
                name=f"shape {problem.pointer}",
                expected=problem.expected,
                actual=f"{problem.actual} ({problem.pointer})",
            )
            return


def _of_live_checks(exchange: Exchange) -> Iterator[Violation]:
    """Check error envelopes and streams with the laws of `watch`."""
    if exchange.status == 404:
        return  # Frameworks often answer missing operations with their own error format.
    for finding in judge_live(exchange):
        # Skip checks of the generated content: a nonsense request may get a nonsense answer.
        if finding.verdict == "fail" and finding.problems and not CHECKS[finding.check].sampled:
            problem = finding.problems[0]
            where = f" ({problem.pointer})" if problem.pointer else ""
            yield Violation(
                name=finding.check,
                expected=problem.expected,
                actual=problem.actual + where,
                rules=CHECKS[finding.check].rules,
            )


def _streams(exchange: Exchange) -> bool:
    try:
        value: Any = json.loads(exchange.request_body)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("stream") is True
