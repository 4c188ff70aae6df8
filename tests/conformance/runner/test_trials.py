"""A scenario is repeated if sampling may have broken a rule, and its attempts are combined."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema_rs
import pytest
from example_servers.asgi import body_of
from example_servers.good_server import KEY, MODEL, serving, transcripts
from example_servers.reference import application
from hypothesis import given
from hypothesis import strategies as st
from mutants import MUTANTS

from plumbline_conformance.cli import main
from plumbline_conformance.judge.verdicts import judge, worth_repeating
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS, SAMPLED, SCENARIOS
from plumbline_conformance.transcript.exchange import Transcript

SCHEMA = Path(__file__).parents[3] / "conformance/plumbline_conformance/reports/report.schema.json"
NAMED = "chat/tool-named"
BREAKS = next(
    mutation for scenario, _, mutation, slugs in MUTANTS if f"{scenario}/{slugs[0]}" == f"{NAMED}/called"
)


def verdicts(broken: list[bool]) -> dict[str, str]:
    """Return the finding if these attempts break the rule that a named tool is called."""
    good = transcripts()[NAMED].exchanges
    bad = BREAKS(transcripts()[NAMED]).exchanges
    first, *again = [bad if one else good for one in broken]
    seen = Transcript(scenario=NAMED, exchanges=first, again=again)
    return {finding.check: finding.verdict for finding in judge(seen)}


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_attempts_that_agree_are_their_verdict_and_others_are_flaky(broken: list[bool]) -> None:
    wanted = "fail" if all(broken) else "flaky" if any(broken) else "pass"

    found = verdicts(broken)

    assert found.pop(f"{NAMED}/called") == wanted
    # Framing and shapes are the same however often one asks: the first attempt alone says what they are.
    steady = {name: verdict for name, verdict in found.items() if not CHECKS[name].sampled}
    assert steady == {name: verdicts(broken[:1])[name] for name in steady}


def test_problems_of_a_later_attempt_point_at_its_exchange() -> None:
    good = transcripts()[NAMED].exchanges
    seen = Transcript(scenario=NAMED, exchanges=good, again=[good, BREAKS(transcripts()[NAMED]).exchanges])

    [flaky] = [finding for finding in judge(seen) if finding.check == f"{NAMED}/called"]

    assert flaky.reason is not None
    assert "1/3" in flaky.reason
    assert flaky.problems[0].exchange == "whole, attempt 3"
    [pointed_at] = [one for one in seen.everything if one.name == flaky.problems[0].exchange]
    assert pointed_at.body not in [one.body for one in good]


def test_framing_and_shapes_and_refusals_never_repeat() -> None:
    steady = ("/shape", "/wire", "/framing", "/envelope", "/usage", "/event-shapes", "/lifecycle", "/nesting")

    assert [name for name, found in CHECKS.items() if found.sampled and name.endswith(steady)] == []
    assert [n for n, found in CHECKS.items() if found.sampled and n.startswith(("errors/", "models/"))] == []


def test_the_rules_of_sampling_are_rules() -> None:
    assert set(rules()) >= SAMPLED


def test_a_broken_must_is_worth_repeating_and_a_kept_one_is_not() -> None:
    assert worth_repeating(transcripts()[NAMED]) == []
    assert f"{NAMED}/called" in worth_repeating(BREAKS(transcripts()[NAMED]))
    assert SCENARIOS[NAMED].sampled
    assert not SCENARIOS["errors/broken-json"].sampled


def moody(breaks: Callable[[int], bool]) -> tuple[Any, list[bool]]:
    """The reference, which calls no tool in attempts that this chooses; and which of them it broke."""
    inner = application()
    asked = 0
    broken: list[bool] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return
        content = await body_of(receive)
        body = json.loads(content or b"{}")
        if isinstance(body.get("tool_choice"), dict):
            attempt, asked = asked // 2, asked + 1
            broken[attempt:] = [breaks(attempt)]
            if broken[attempt]:
                content = json.dumps({**body, "tool_choice": "none"}).encode()

        async def again() -> Any:
            return {"type": "http.request", "body": content, "more_body": False}

        await inner(scope, again, send)

    return serve, broken


@pytest.mark.parametrize(
    ("breaks", "trials", "verdict", "attempts", "status"),
    [
        (lambda attempt: attempt == 0, 3, "flaky", 4, 1),
        (lambda attempt: True, 2, "fail", 3, 1),
        (lambda attempt: False, 3, "pass", 1, 0),
        (lambda attempt: True, 0, "fail", 1, 1),
    ],
)
def test_a_run_repeats_a_scenario_and_its_recording_agrees(
    breaks: Callable[[int], bool],
    trials: int,
    verdict: str,
    attempts: int,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, first, second, xml = (tmp_path / name for name in ("run.jsonl", "a.json", "b.json", "junit.xml"))
    server, broken = moody(breaks)
    wanted = f"{NAMED}/called"
    with serving(server) as base_url:
        options = [base_url, "--model", MODEL, "--api-key", KEY, "--trials", str(trials)]
        files = ["--record", str(run), "--json", str(first), "--junit", str(xml)]
        assert main(["check", *options, *files, NAMED]) == status
    assert main(["judge", str(run), "--json", str(second)]) == status

    assert len(broken) == attempts
    [seen] = read_recording(run).transcripts
    assert len(seen.attempts) == attempts
    assert KEY not in run.read_text("utf-8")
    reports = [json.loads(path.read_text("utf-8")) for path in (first, second)]
    assert reports[0]["results"] == reports[1]["results"]
    assert reports[0]["evidence"] == reports[1]["evidence"]
    jsonschema_rs.validator_for(json.loads(SCHEMA.read_bytes())).validate(reports[0])
    [result] = [result for result in reports[0]["results"] if result["check"] == wanted]
    assert result["verdict"] == verdict
    [case] = [case for case in ElementTree.parse(xml).iter("testcase") if case.get("name") == "called"]
    assert [node.get("type") for node in case] == ([] if verdict == "pass" else [verdict])
    assert ("broken in 1/4 attempts" in capsys.readouterr().out) == (verdict == "flaky")
