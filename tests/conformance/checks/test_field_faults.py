"""Faults that public issues describe are detected, and what servers may do differently is not.

- A fault changes an answer of some scenario, and a check accuses it.
- A legal difference changes an answer, and no check fails.
- Neither changes what was recorded, which all tests share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import pytest
from example_servers.good_server import transcripts
from field_faults import FAULTS, LEGAL
from field_faults.changes import Change
from mutants.mutations import renamed
from support.about import about

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.transcript.exchange import Exchange, Transcript

VIOLATIONS = {"fail", "warn", "untestable"}


def changed_transcripts(change: Change) -> Iterator[Transcript]:
    """Yield the transcripts that a change affects; answers of two modes also as a server would repeat them."""
    for scenario, seen in transcripts().items():
        found = [change(one) for one in seen.exchanges]
        pairs = [(one, other) for one, other in zip(found, seen.exchanges, strict=True) if one is not other]
        if pairs:
            assert all(map(is_as_recorded, (other for _, other in pairs)))
            yield Transcript(scenario=scenario, exchanges=found)
            if [one.name for one in found] == [WHOLE, STREAM]:
                yield Transcript(scenario=scenario, exchanges=[*found, *map(renamed, found)])


def is_as_recorded(exchange: Exchange) -> bool:
    """Return whether what was parsed of an answer is still what its bytes say."""
    read = [(event.json, event.data) for event in exchange.events if event.data not in (None, "[DONE]")]
    return all(value == json.loads(data or "") for value, data in read)


def findings(change: Change, step: int = 1) -> list[Finding]:
    """Judge the transcripts that a change affects, or every second or third of them."""
    return [finding for seen in islice(changed_transcripts(change), 0, None, step) for finding in judge(seen)]


@pytest.mark.parametrize("name", [name for _, name, _ in FAULTS])
def test_a_fault_of_the_field_is_detected(name: str) -> None:
    """No check breaks off in the transcripts up to the first that is accused; the long test judges all."""
    change = next(change for _, other, change in FAULTS if other == name)
    found: set[str] = set()
    for seen in changed_transcripts(change):
        found |= {finding.verdict for finding in judge(seen)}
        if found & VIOLATIONS:
            break

    assert found & VIOLATIONS
    assert "error" not in found


@pytest.mark.long
def test_no_check_breaks_off_on_a_fault_of_the_field() -> None:
    for _, name, change in FAULTS:
        with about(name):
            assert "error" not in {finding.verdict for finding in findings(change)}


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [name for _, name, _ in LEGAL])
def test_a_legal_difference_is_not_accused(name: str, step: int) -> None:
    change = next(change for _, other, change in LEGAL if other == name)
    found = findings(change, step)

    assert found
    assert [one for one in found if one.verdict in ("fail", "untestable", "error")] == []


def test_names_are_unique() -> None:
    names = [name for _, name, _ in (*FAULTS, *LEGAL)]

    assert len(set(names)) == len(names)
