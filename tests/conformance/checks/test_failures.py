"""Test the verdicts on refusals, busy servers, broken connections and crashes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from example_servers.good_server import transcripts
from mutants.mutations import FIRST, body, body_bytes, error, events, header, status
from support.about import about

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS

REFUSAL = json.dumps(
    {"error": {"message": "n is not supported", "type": "invalid_request_error", "param": "n", "code": None}}
).encode()


def violated(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.verdict in ("fail", "warn", "error")]


TO_BE_REFUSED = {
    "websocket/upgrade",
    "websocket/key",
    "responses/background-unkept",
    "messages/key",
    "messages/refused",
}
"""Scenarios that expect a refusal, besides those of errors."""


def test_an_honest_refusal_is_rejected_and_no_failure() -> None:
    for scenario in (
        name for name in SCENARIOS if not name.startswith("errors/") and name not in TO_BE_REFUSED
    ):
        with about(scenario):
            for code in (400, 404, 422, 501):
                found = judge(
                    body_bytes(lambda _: REFUSAL, None)(status(code, None)(transcripts()[scenario]))
                )

                # An ordinary request that is refused is a warning, unless the server refuses the plainest as well.
                forms = {finding.verdict for finding in found if finding.check.endswith("/ordinary")}
                others = [finding for finding in found if not finding.check.endswith("/ordinary")]
                verdicts = {finding.verdict for finding in others if finding.check != "models/list/unknown"}
                assert forms <= {"rejected", "warn"}, code
                assert verdicts == {"rejected"}, code
                assert "n is not supported" in str(found[0].reason), code


def test_what_comes_between_is_inconclusive() -> None:
    """A busy server, a gateway or a wrong key breaks no rule."""
    for scenario in sorted(SCENARIOS.keys() - {"errors/key", "messages/key", "websocket/key"}):
        with about(scenario):
            for code in (401, 408, 429, 502, 503, 504):
                found = judge(status(code, None)(transcripts()[scenario]))

                assert {finding.verdict for finding in found} == {"inconclusive"}, code
                assert all(finding.reason for finding in found), code


@pytest.mark.parametrize("code", [301, 307])
def test_a_redirection_is_not_followed(code: int) -> None:
    moved = header("location", "https://elsewhere/v1")(status(code)(transcripts()["chat/text"]))

    assert {(finding.verdict, finding.reason) for finding in judge(moved)} == {
        ("inconclusive", f"status {code} to https://elsewhere/v1")
    }


@pytest.mark.parametrize("code", [201, 204])
def test_another_success_is_a_failure(code: int) -> None:
    """The contract has only 200, and clients compare with it."""
    found = {finding.check: finding for finding in judge(status(code)(transcripts()["chat/text"]))}

    assert found["chat/text/shape"].verdict == "fail"
    assert found["chat/text/shape"].problems[0].expected == "status 200"


def test_a_broken_connection_is_inconclusive() -> None:
    for scenario in SCENARIOS:
        with about(scenario):
            found = judge(error("ReadError: the connection broke")(transcripts()[scenario]))

            assert {(finding.verdict, finding.reason) for finding in found} == {
                ("inconclusive", "ReadError: the connection broke")
            }


def test_a_connection_that_breaks_each_time_is_reported_once() -> None:
    """The request was sent again, and the server lived."""
    for scenario in (name for name in SCENARIOS if not name.startswith("websocket/")):
        with about(scenario):
            found = judge(error("ReadError: the connection broke", dropped=True)(transcripts()[scenario]))

            accusing = [finding for finding in found if finding.verdict in ("fail", "warn")]
            places = [finding.problems[0].exchange for finding in accusing]
            assert len(places) == len(set(places))
            assert {finding.verdict for finding in found} <= {"fail", "warn", "inconclusive"}
            assert accusing
            assert all(finding.crash for finding in accusing)


def test_a_crash_is_reported_under_one_check() -> None:
    """Other checks, which need an answer, have no verdict."""
    for scenario in SCENARIOS:
        with about(scenario):
            every = judge(status(500, None)(transcripts()[scenario]))
            found = [
                finding
                for finding in every
                # These checks examine the error itself, which may be well-formed.
                if not finding.check.endswith(
                    ("/envelope", "/param", "/request-id", "/no-leak", "/type", "/refused")
                )
            ]

            crashes = [finding for finding in found if finding.crash and finding.problems]
            places = [(finding.problems[0].exchange, finding.problems[0].pointer) for finding in crashes]
            assert len(places) == len(set(places))
            if any(CHECKS[finding.check].level == "MUST" for finding in found):
                assert "fail" in {finding.verdict for finding in every}
            assert "pass" not in {finding.verdict for finding in found}


@pytest.mark.parametrize(
    ("scenario", "event"),
    [
        ("chat/stream-text", {"error": {"message": "out of memory"}}),
        ("responses/stream-text", {"type": "error", "message": "out of memory"}),
        ("responses/stream-text", {"type": "response.failed", "response": {"error": "out of memory"}}),
    ],
)
def test_a_crash_in_the_middle_of_a_stream_is_a_failure(scenario: str, event: dict[str, Any]) -> None:
    """The error is reported once, and not as a missing finish reason (ERR-10, ERR-12)."""
    found = judge(events(lambda frames: [*frames[:3], (None, event)])(transcripts()[scenario]))

    [finding] = [finding for finding in found if finding.verdict == "fail"]
    assert "out of memory" in finding.problems[0].actual


def test_an_error_object_of_another_shape_is_no_failure_to_refuse() -> None:
    """ERR-01 is broken, but ERR-07, ERR-08, CS-09 and HTTP-07 are kept."""
    names = [name for name in SCENARIOS if name.startswith("errors/") and "unknown" not in name]
    names.remove("errors/methods")  # An answer to HEAD has no body.
    for scenario in names:
        odd = body(lambda answer: answer.get("error", {}).update(code=400), None)(transcripts()[scenario])
        assert {finding.check.rsplit("/", 1)[1] for finding in violated(judge(odd))} <= {"envelope"}


def test_a_crash_that_shows_the_source_is_a_leak_as_well() -> None:
    def shown(answer: dict[str, Any]) -> None:
        answer["error"]["message"] = 'File "/srv/app.py", line 3'

    crashed = status(500, FIRST)(body(shown, FIRST)(transcripts()["errors/chat-bounds"]))

    assert {finding.check for finding in violated(judge(crashed))} == {
        "errors/chat-bounds/refused",
        "errors/chat-bounds/no-leak",
    }


def test_only_the_check_of_a_broken_exchange_fails() -> None:
    found = {
        finding.check: finding for finding in judge(status(500, "unknown")(transcripts()["models/list"]))
    }

    assert found["models/list/unknown"].verdict == "fail"
    assert found["models/list/shape"].verdict == found["models/list/retrievable"].verdict == "pass"
