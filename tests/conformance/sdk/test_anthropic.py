"""`--sdk anthropic` finds what Anthropic's client raises or gets wrong on recorded bytes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anthropic
import pytest
from example_servers.good_server import transcripts
from mutants.mutations import FIRST, LAST, Mutation, body, body_bytes, changed, each, events, status, without

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli import main
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.sdk.client_reading import claims_of, read_again
from plumbline_conformance.suite.client_claims import CLAIMS
from plumbline_conformance.transcript.exchange import Transcript

RECORDINGS = Path(__file__).parents[3] / "conformance" / "recordings"


def findings(*seen: Transcript) -> dict[str, Finding]:
    """By the last segment of their ids."""
    return {finding.check.rsplit("/", 1)[1]: finding for finding in read_again("anthropic", seen)}


def test_the_client_reads_every_answer_of_the_reference() -> None:
    messages = [seen for seen in transcripts().values() if seen.scenario.startswith("messages/")]
    found = findings(*messages)

    assert {name: finding.problems for name, finding in found.items() if finding.problems} == {}
    assert {finding.verdict for finding in found.values()} == {"pass"}


@pytest.mark.long
def test_the_client_reads_every_answer_of_our_server() -> None:
    found = read_again("anthropic", read_recording(RECORDINGS / "plumbline.jsonl.gz").transcripts)

    assert [finding.check for finding in found] == claims_of("anthropic")
    assert {finding.verdict for finding in found} == {"pass"}


def test_answers_of_other_apis_are_not_read() -> None:
    found = findings(transcripts()["chat/stream-text"], transcripts()["models/list"])

    assert {finding.verdict for finding in found.values()} == {"skipped"}


def changing(kind: str, change: Any) -> Mutation:
    """Change the events of a type in the last answer."""

    def changed_events(found: list[Any]) -> list[Any]:
        for _, data in found:
            if data.get("type") == kind:
                change(data)
        return found

    return events(changed_events)


def leaving_out(kind: str) -> Mutation:
    """Leave the events of a type out of the last answer."""
    return events(lambda found: [(name, data) for name, data in found if data.get("type") != kind])


def other_index(event: Any) -> None:
    event["index"] = 7


def halves(name: str | None, event: Any) -> list[tuple[str | None, Any]]:
    """Return a delta of a signature as two."""
    signature = event.get("delta", {}).get("signature")
    if signature is None:
        return [(name, event)]
    parts = (signature[:5], signature[5:])
    return [(name, {**event, "delta": {"type": "signature_delta", "signature": part}}) for part in parts]


STREAM, HELPER = "messages-stream", "messages-stream-helper"
TEXT, THINKING = "messages/text", "messages/thinking"
MUTANTS: list[tuple[str, str, Mutation, set[str]]] = [
    (TEXT, "no message_start", leaving_out("message_start"), {HELPER}),
    (TEXT, "no start of a block", leaving_out("content_block_start"), {HELPER}),
    (TEXT, "a delta of another block", changing("content_block_delta", other_index), {HELPER}),
    (TEXT, "a delta without its kind", changing("content_block_delta", lambda e: e["delta"].pop("type")), {HELPER}),
    (TEXT, "no usage at the end", changing("message_delta", without("usage")), {HELPER}),
    (TEXT, "events without names", events(lambda found: [(None, data) for _, data in found]), {STREAM, HELPER}),
    (TEXT, "no JSON in an event", body_bytes(lambda old: b"event: x\ndata: {\n\n" + old), {STREAM, HELPER}),
    (TEXT, "an answer that is no JSON", body_bytes(lambda old: b"{", request=FIRST), {"messages-whole"}),
    (TEXT, "an answer without content", body(without("content"), request=FIRST), {"messages-whole"}),
    (TEXT, "an answer without usage", body(without("usage"), request=FIRST), {"messages-whole"}),
    ("messages/count", "a count without a number", body(without("input_tokens")), {"count-whole"}),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "what", "mutation", "tripped"), MUTANTS)
def test_a_mutant_trips_the_client(scenario: str, what: str, mutation: Mutation, tripped: set[str]) -> None:
    seen = transcripts()[scenario]
    found = findings(mutation(seen))

    assert {name for name, finding in found.items() if finding.problems} == tripped, found
    for name in tripped:
        assert found[name].verdict == "warn"
        for problem in found[name].problems:
            assert problem.scenario == scenario
            assert problem.exchange is not None
            assert problem.rule in CLAIMS[f"sdk/anthropic/{name}"].rules


def test_a_signature_in_pieces_is_lost_in_the_final_message() -> None:
    """The client keeps the last piece only, so a server has to send the signature at once."""

    def in_pieces(found: list[Any]) -> list[Any]:
        return [part for event in found for part in halves(*event)]

    found = findings(events(in_pieces, request="stream")(transcripts()[THINKING]))

    assert [name for name, finding in found.items() if finding.problems] == [HELPER]
    assert [problem.pointer for problem in found[HELPER].problems] == ["content[000].signature"]


@pytest.mark.parametrize("value", [400, 401, 403, 404, 409, 413, 422, 429, 500, 503, 529])
def test_a_refusal_raises_the_error_of_its_status(value: int) -> None:
    found = findings(status(value)(transcripts()["messages/refused"]))

    assert found["errors"].verdict == "pass", found["errors"]


def test_an_error_in_the_stream_is_the_clients_as_well() -> None:
    sent = (
        b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}\n\n'
    )
    seen = body_bytes(lambda old: b"".join(old.partition(b"\n\n")[:2]) + sent)(transcripts()[TEXT])

    assert [name for name, finding in findings(seen).items() if finding.problems] == []


def test_a_stream_that_was_cut_is_cut_for_the_client() -> None:
    """A lost connection is no problem of the answer."""
    seen = transcripts()[TEXT]
    for size in (0, 1, 300, len(seen.exchanges[-1].body)):
        cut = each(LAST, lambda e, n=size: changed(e, frames=[(0.0, e.body[:n])], error="cut"))  # type: ignore[misc]
        assert [name for name, finding in findings(cut(seen)).items() if finding.problems] == []


def test_without_the_client_the_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)

    (tmp_path / "run.jsonl").touch()
    assert main(["judge", str(tmp_path / "run.jsonl"), "--sdk", "anthropic"]) == 2
    assert "pip install anthropic" in capsys.readouterr().err


def test_a_client_without_the_helpers_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(anthropic.resources.messages.Messages, "stream")

    (tmp_path / "run.jsonl").touch()
    assert main(["judge", str(tmp_path / "run.jsonl"), "--sdk", "anthropic"]) == 2
    assert f"a newer anthropic than {anthropic.__version__}" in capsys.readouterr().err
