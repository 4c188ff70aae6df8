"""Each part of the contract is asked for by a scenario, or has a reason that is about something."""

from __future__ import annotations

from functools import cache

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from own_server.asked import RECORDING, Part, matches, reasons, table
from plumbline_conformance.suite.contract import event_schemas
from plumbline_conformance.suite.scenario import CHECKS


@cache
def unasked() -> list[Part]:
    return [part for part, scenarios in table(RECORDING).items() if not scenarios]


def test_a_part_without_a_scenario_has_a_reason() -> None:
    assert [part for part in unasked() if not any(one.covers(part) for one in reasons())] == []


def test_a_reason_is_about_a_part_that_no_scenario_asks_for() -> None:
    patterns = [pattern for one in reasons() for pattern in one.parts]

    assert [one for one in patterns if not any(matches(one, part) for part in unasked())] == []
    assert len(set(patterns)) == len(patterns)


def test_a_reason_is_a_sentence_and_its_check_exists() -> None:
    assert all(one.why.endswith(".") and len(one.why) > 30 for one in reasons())
    assert {one.checked_by for one in reasons() if one.checked_by} <= set(CHECKS)


def test_each_event_is_provoked_or_has_a_reason() -> None:
    """The table has a row for the type of each event, so none is left out by the depth of the table."""
    rows = {place for schema, place in table(RECORDING) if schema == "ResponseStreamEvent"}

    assert {f"<{kind}>.type" for kind in event_schemas()} <= rows


def test_members_of_requests_are_asked_for_but_for_a_few() -> None:
    """The reasons are for what only the vendor runs, not for what nobody thought of."""
    requests = [part for part in unasked() if part[0].startswith("Create") and part[0].endswith("Request")]

    assert len(requests) <= 5
