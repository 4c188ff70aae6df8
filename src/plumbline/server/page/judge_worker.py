"""Judge exchanges: a process that `page.judge` starts, so that no check can hold up the server.

It reads exchanges from standard input and writes judgements, each with its length before it, and ends with its input.
"""

from __future__ import annotations

import json
import os
import re
import resource
import struct
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

import jsonschema_rs
import msgspec

from plumbline.server.page.event_rules import rules_of_events
from plumbline.server.page.exchange import (
    JudgedEvent,
    JudgedExchange,
    JudgedFinding,
    JudgedRule,
    JudgedText,
    Judgement,
    SchemaProblem,
    SchemaVerdict,
)
from plumbline_conformance.judge.verdicts import Finding, judge_law
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.live import judge_live

__all__ = ["judged", "main", "validated"]

_MEMORY = 1024**3
"""Bytes of the process's addresses."""
_NICE = 10
_BROKEN = ("fail", "warn")
_AT_EVENT = re.compile(r"event (\d{1,6})\b")
_MOST_FINDINGS = 200
_LONGEST = 1000
"""Characters of a text of a finding."""
_MOST_LOCATED = 20
"""Findings whose events are searched."""
_MOST_SEARCHED = 6000
"""Findings times events of the stream: a law looks at all of them about ten times, and 2,000 events take 0.07 s."""


def judged(seen: JudgedExchange) -> Judgement:
    """Apply all laws to an exchange."""
    exchange = Exchange(
        method="POST",
        url=f"http://127.0.0.1{seen.path}",
        request_headers={"content-type": "application/json"},
        request_body=seen.request,
        status=seen.status,
        headers=[(name.lower(), value) for name, value in seen.headers],
        frames=list(seen.frames),
    )
    found = judge_live(exchange)
    findings = list(_findings(found, exchange))
    if seen.complete:
        findings = _all_located(findings, exchange)
    # The last event may have come in part, so what is wrong with it may still be put right.
    last = len(exchange.events) - 1
    if not seen.complete:
        findings = [each for each in findings if each.event is not None and each.event < last]
    events = [JudgedEvent(names) for names in rules_of_events(exchange)]
    named = {each.rule for each in findings} | {name for event in events for name in event.rules}
    known = rules()
    return Judgement(
        events=events,
        findings=findings[:_MOST_FINDINGS],
        rules={
            name: JudgedRule(known[name]["level"], known[name]["sentence"])
            for name in sorted(named)
            if name in known
        },
        checks=len(found),
        passed=sum(finding.verdict == "pass" for finding in found),
    )


def _findings(found: list[Finding], exchange: Exchange) -> Iterator[JudgedFinding]:
    met: set[tuple[str, int | None, str, str]] = set()
    for finding in found:
        check = CHECKS[finding.check]
        for problem in finding.problems if finding.verdict in _BROKEN else ():
            rule = problem.rule or check.rules[0]
            event = _event(problem.pointer, len(exchange.events))
            key = rule, event, problem.expected, problem.actual
            if key in met:  # Another check has found the same.
                continue
            met.add(key)
            yield JudgedFinding(
                rule=rule,
                check=check.id,
                title=check.title,
                verdict=finding.verdict,
                expected=problem.expected[:_LONGEST],
                actual=problem.actual[:_LONGEST],
                pointer=problem.pointer[:_LONGEST],
                event=event,
            )


def _event(pointer: str, count: int) -> int | None:
    if pointer.startswith("the last event") and count:
        return count - 1
    match = _AT_EVENT.match(pointer)
    return int(match[1]) if match and int(match[1]) < count else None


def _all_located(findings: list[JudgedFinding], exchange: Exchange) -> list[JudgedFinding]:
    """Look for the events of the first findings without one, as many as time allows."""
    count = len(exchange.events)
    left = min(_MOST_LOCATED, _MOST_SEARCHED // count) if count > 1 else 0
    located = []
    for finding in findings:
        if finding.event is None and left:
            left -= 1
            finding = _located(finding, exchange)
        located.append(finding)
    return located


def _located(finding: JudgedFinding, exchange: Exchange) -> JudgedFinding:
    """Look for the event at which a violation appears that is about the stream as a whole, such as a second id.

    It is the last event of the shortest beginning of the stream that breaks the rule, unless every beginning does:
    then something is missing at the end.
    """
    events = exchange.events

    def breaks(count: int) -> bool:
        data = b"".join(
            (f"event: {each.name}\n" if each.name else "").encode() + f"data: {each.data}\n\n".encode()
            for each in events[:count]
        )
        begun = msgspec.structs.replace(exchange, frames=[(0.0, data)])
        result = judge_law(CHECKS[finding.check], begun)
        return result is not None and any(
            (problem.rule or CHECKS[finding.check].rules[0], problem.pointer)
            == (finding.rule, finding.pointer)
            for problem in result.problems
        )

    low, high = 1, len(events)
    if breaks(low) or not breaks(high):
        return finding
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if breaks(middle) else (middle, high)
    return msgspec.structs.replace(finding, event=high - 1)


_MOST_PROBLEMS = 20


def validated(seen: JudgedText) -> SchemaVerdict:
    """Compare a text with its schema."""
    try:
        value = json.loads(seen.text)
    except (ValueError, RecursionError) as error:
        return SchemaVerdict([SchemaProblem("", f"The text is not JSON: {error}")])
    try:
        validator = jsonschema_rs.validator_for(seen.schema, retriever=_refuse)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return SchemaVerdict([SchemaProblem("", f"The schema cannot be read: {str(error)[:_LONGEST]}")])
    problems = islice(validator.iter_errors(value), _MOST_PROBLEMS)
    return SchemaVerdict(
        [
            SchemaProblem("".join(f"/{each}" for each in problem.instance_path), problem.message[:_LONGEST])
            for problem in problems
        ]
    )


def _refuse(address: str) -> Any:
    raise ValueError(f"{address} is elsewhere, and is not fetched")


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """Judge exchanges and texts until the input ends."""
    while len(head := source.read(4)) == 4:
        (size,) = struct.unpack("!I", head)
        seen = msgspec.json.decode(source.read(size), type=JudgedExchange | JudgedText)
        answer = msgspec.json.encode(judged(seen) if isinstance(seen, JudgedExchange) else validated(seen))
        sink.write(struct.pack("!I", len(answer)) + answer)
        sink.flush()


if __name__ == "__main__":
    # An interrupt on the terminal is for the server, which ends this process. In a session of its own Linux would
    # weigh its priority against nothing else.
    os.setpgrp()
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(sys.stdin.buffer, sys.stdout.buffer)
