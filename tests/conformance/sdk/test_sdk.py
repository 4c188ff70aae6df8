"""`--sdk openai` finds what the official client raises or gets wrong on recorded bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from example_servers.good_server import transcripts
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mutants.mutations import (
    FIRST,
    LAST,
    Mutation,
    body,
    body_bytes,
    changed,
    chunk,
    chunks,
    each,
    events,
    status,
    without,
)
from support.laws import EXPLORED

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.sdk import client_reading as run
from plumbline_conformance.sdk.calls import call_of
from plumbline_conformance.sdk.client_reading import claims_of, read_again
from plumbline_conformance.suite.client_claims import CLAIMS, CLIENTS
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.coverage import published, revisions
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.transcript.exchange import Exchange, Transcript

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT / "conformance" / "recordings"
SCHEMA = ROOT / "conformance/plumbline_conformance/reports/report.schema.json"


def findings(*seen: Transcript) -> dict[str, Finding]:
    """By the last segment of their ids."""
    return {finding.check.rsplit("/", 1)[1]: finding for finding in read_again("openai", seen)}


def broken(*seen: Transcript) -> list[str]:
    return [name for name, finding in findings(*seen).items() if finding.problems]


def test_claims_are_of_a_client_and_no_checks() -> None:
    assert CLIENTS == ("openai", "anthropic")
    for name, claim in CLAIMS.items():
        assert re.fullmatch(r"sdk/(openai|anthropic)/[a-z-]+", name)
        assert name not in CHECKS
        assert all(name not in published(revision) for revision in revisions())
        assert {rules()[rule]["level"] for rule in claim.rules} == {claim.level}


@pytest.mark.long
@pytest.mark.parametrize("name", ["plumbline", "plumbline-transformers"])
def test_the_client_reads_every_answer_of_our_server(name: str) -> None:
    found = read_again("openai", read_recording(RECORDINGS / f"{name}.jsonl.gz").transcripts)

    assert [finding.check for finding in found] == claims_of("openai")
    assert {finding.verdict for finding in found} == {"pass"}


def test_the_client_reads_every_answer_of_the_reference() -> None:
    found = findings(*transcripts().values())

    assert {name: finding.problems for name, finding in found.items() if finding.problems} == {}
    assert {finding.verdict for finding in found.values()} == {"pass"}


@pytest.mark.long
def test_of_a_server_that_repeats_ids_the_client_adds_them_up() -> None:
    """As the recording of a server of good repute has it."""
    found = findings(*read_recording(RECORDINGS / "llama-cpp.jsonl.gz").transcripts)

    helper = found["chat-stream-helper"]
    assert helper.verdict == "warn"
    assert {problem.rule for problem in helper.problems} == {"SDK-02"}
    assert {problem.pointer.rpartition(".")[2] for problem in helper.problems} == {"id", "name"}
    assert found["chat-stream"].verdict == "pass"
    assert found["responses-whole"].verdict == "skipped"


def event_types(kind: str) -> Any:
    """Drop the events of a type."""
    return events(lambda found: [(name, data) for name, data in found if get_field(data, "type") != kind])


def get_field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def every_choice(change: Any) -> Mutation:
    return chunks(lambda found: [change(choice) for data in found for choice in data["choices"]])


def other_id(value: Any) -> None:
    value["response"]["id"] = "resp_other"


def other_index(value: Any) -> None:
    value["output_index"] = 7


def repeated_call(found: Any) -> None:
    [first] = [data for data in found if (call := calls(data)) and "id" in call[0]]
    for data in found:
        for call in calls(data):
            call["id"] = calls(first)[0]["id"]


def calls(data: Any) -> Any:
    return data["choices"][0]["delta"].get("tool_calls", []) if data["choices"] else []


def another_object(found: Any) -> None:
    found[2]["object"] = "chat.completion"


STREAM, TOOL, RESPONSE = "chat/stream-text", "chat/tool", "responses/tool"
MUTANTS: list[tuple[str, str, Mutation, set[str]]] = [
    (STREAM, "no index in choices", every_choice(without("index")), {"chat-stream-helper"}),
    (STREAM, "no delta in choices", every_choice(without("delta")), {"chat-stream", "chat-stream-helper"}),
    (STREAM, "a chunk of another object", chunks(another_object), {"chat-stream-helper"}),
    (
        STREAM,
        "an event without data",
        body_bytes(lambda old: b"event: ping\n\n" + old),
        {"chat-stream", "chat-stream-helper"},
    ),
    (
        STREAM,
        "no JSON in an event",
        body_bytes(lambda old: b"data: {\n\n" + old),
        {"chat-stream", "chat-stream-helper"},
    ),
    (STREAM, "an answer that is no JSON", body_bytes(lambda old: b"{", request=FIRST), {"chat-whole"}),
    (STREAM, "an answer without choices", body(without("choices"), request=FIRST), {"chat-whole"}),
    (TOOL, "the id of a call in every delta", chunks(repeated_call), {"chat-stream-helper"}),
    (RESPONSE, "no response.completed", event_types("response.completed"), {"responses-stream-helper"}),
    (RESPONSE, "no response.created", event_types("response.created"), {"responses-stream-helper"}),
    (RESPONSE, "another id of the response", chunk(-1, other_id), {"responses-stream-helper"}),
    (RESPONSE, "a delta of an item that nobody added", chunk(4, other_index), {"responses-stream-helper"}),
    (
        RESPONSE,
        "deltas that are not the arguments",
        chunk(4, lambda event: event.update(delta="x")),
        {"responses-stream-helper"},
    ),
    (RESPONSE, "an answer without output", body(without("output"), request=FIRST), {"responses-whole"}),
    ("models/list", "a list that is none", body(lambda value: value.update(data=7), request=FIRST), {"models-whole"}),
    (
        "completions/stream",
        "an event that is no object",
        body_bytes(lambda old: b"data: 7\n\n" + old),
        {"completions-stream"},
    ),
    ("completions/text", "an answer without choices", body(without("choices"), request=FIRST), {"completions-whole"}),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "what", "mutation", "tripped"), MUTANTS)
def test_a_mutant_trips_the_client(scenario: str, what: str, mutation: Mutation, tripped: set[str]) -> None:
    found = findings(mutation(transcripts()[scenario]))

    assert {name for name, finding in found.items() if finding.problems} == tripped, found
    for name in tripped:
        assert found[name].verdict == "warn"
        for problem in found[name].problems:
            assert problem.scenario == scenario
            assert problem.exchange is not None
            assert problem.rule in CLAIMS[f"sdk/openai/{name}"].rules


def test_a_problem_points_at_the_event_that_the_client_did_not_take() -> None:
    seen = body_bytes(lambda old: old.replace(b"data: ", b"data: {", 3).replace(b"data: {", b"data: ", 2))(
        transcripts()[STREAM]
    )

    assert [problem.pointer for problem in findings(seen)["chat-stream"].problems] == ["event 2"]


def test_an_error_in_the_stream_is_the_clients_as_well() -> None:
    sent = b'data: {"error": {"message": "no", "type": "server_error", "param": null, "code": null}}\n\n'
    for scenario in (STREAM, "completions/stream"):
        seen = body_bytes(lambda old: b"".join(old.partition(b"\n\n")[:2]) + sent)(transcripts()[scenario])

        assert broken(seen) == []


@pytest.mark.parametrize("kind", ["response.failed", "response.incomplete"])
def test_a_response_that_ends_otherwise_is_none_to_get(kind: str) -> None:
    def ended(found: list[Any]) -> None:
        found[-1]["type"] = kind

    assert broken(chunks(ended)(transcripts()[RESPONSE])) == []


@pytest.mark.parametrize("value", [400, 401, 403, 404, 409, 418, 422, 429, 500, 503])
def test_a_refusal_raises_the_error_of_its_status(value: int) -> None:
    found = findings(status(value)(transcripts()["errors/empty-messages"]))

    assert found["errors"].verdict == "pass"
    assert [name for name, finding in found.items() if finding.verdict != "skipped"] == ["errors"]


def test_a_stream_that_was_cut_is_cut_for_the_client() -> None:
    """A lost connection is no problem of the answer, but problems before it are found."""
    for scenario in (STREAM, RESPONSE, "completions/stream"):
        seen = transcripts()[scenario]
        for size in (0, 1, 300, len(seen.exchanges[-1].body)):
            cut = each(LAST, lambda e, n=size: changed(e, frames=[(0.0, e.body[:n])], error="cut"))  # type: ignore[misc]
            assert broken(cut(seen)) == []

    twisted = each(LAST, lambda e: changed(e, error="cut"))(chunk(4, other_index)(transcripts()[RESPONSE]))
    assert broken(twisted) == ["responses-stream-helper"]


HOSTILE = [
    b"",
    b"\xff\xfe",
    b"data: " + b"[" * 100_000,
    b"[" * 200_000,
    b'data: {"choices": [null]}\n\n',
    b'data: {"choices": [{"index": 99999999999999999999, "delta": {"content": {}}}]}\n\n',
    b'data: {"object": "chat.completion.chunk", '
    b'"choices": [{"index": 0, "delta": {"tool_calls": [{"index": -9}]}}]}\n\n',
    b'data: {"type": "response.created", "response": {"id": {}, "output": 7}}\n\n',
    b"\xef\xbb\xbfdata: {}\n\n",
    b'{"choices": "x", "data": "y", "output": "z"}',
    b"null",
]
FIELDS = st.sampled_from(
    ["type", "object", "choices", "index", "delta", "response", "output", "item", "output_index"]
)
WORDS = st.sampled_from(
    ["response.created", "response.completed", "response.output_text.delta", "chat.completion.chunk"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
BODIES = (
    st.sampled_from(HOSTILE)
    | st.binary(max_size=300)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | st.lists(VALUES, max_size=4).map(
        lambda found: b"".join(b"data: %b\n\n" % json.dumps(value).encode() for value in found)
    )
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["content-type", "content-length", "transfer-encoding", "content-encoding", "location", "x y"]
        )
        | st.text(max_size=4),
        st.sampled_from(
            ["text/event-stream", "application/json; charset=x", "0", "99999", "chunked", "gzip", "a\r\nb: c"]
        )
        | st.text(max_size=6),
    ),
    max_size=4,
)


@pytest.mark.long
@settings(max_examples=EXPLORED or 25, deadline=None)
@given(
    st.sampled_from([STREAM, RESPONSE, "completions/stream", "models/list", "errors/empty-messages"]),
    BODIES,
    HEADERS,
    st.integers(-1, 999),
    st.none() | st.just("cut"),
)
@example(STREAM, HOSTILE[2], [], 200, None)
def test_nothing_that_was_recorded_ends_the_pass(
    scenario: str, content: bytes, headers: list[tuple[str, str]], value: int, error: str | None
) -> None:
    """Whatever the bytes are: a finding for each claim, and none of them a fault of the suite."""

    def twist(exchange: Exchange) -> Exchange:
        half = len(content) // 2
        frames = [(0.0, content[:half]), (0.1, content[half:])]
        return changed(exchange, status=value, headers=headers, frames=frames, error=error)

    found = read_again("openai", [each(None, twist)(transcripts()[scenario])])

    assert [finding.check for finding in found] == claims_of("openai")
    assert {finding.verdict for finding in found} <= {"pass", "warn", "skipped"}


@pytest.mark.long
@settings(max_examples=EXPLORED or 15, deadline=None)
@given(VALUES, st.text(max_size=20), st.booleans())
def test_nothing_that_was_sent_ends_the_pass(sent: Any, path: str, known: bool) -> None:
    url = f"http://h/v1/{'chat/completions' if known else path}"
    request = json.dumps({**sent, "stream": True} if isinstance(sent, dict) else sent).encode()
    seen = each(LAST, lambda e: changed(e, url=url, request_body=request))(transcripts()[STREAM])

    assert {finding.verdict for finding in read_again("openai", [seen])} <= {"pass", "warn", "skipped"}


def test_what_is_too_long_is_left_out_and_reported() -> None:
    many = body_bytes(lambda old: b'data: {"choices": []}\n\n' * 30_000)(transcripts()[STREAM])
    long = body_bytes(lambda old: b" " * (1 << 20) + old)(transcripts()[STREAM])

    for seen in (many, long):
        found = findings(seen)["chat-stream"]
        assert found.verdict == "skipped"
        assert "1 were too long to read again" in (found.reason or "")


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_SECONDS", 0.0)

    found = findings(*transcripts().values())

    assert {finding.verdict for finding in found.values()} == {"skipped"}
    assert re.search(r"; \d+ were left out after 0 seconds", found["chat-stream"].reason or "")


def test_the_client_asks_nobody_but_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a proxy of the environment, nor a server that sends it elsewhere, leads it away."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    away = each(None, lambda e: changed(e, status=404, headers=[("location", "http://127.0.0.1:9/")]))

    assert findings(transcripts()[STREAM])["chat-stream"].verdict == "pass"
    assert findings(away(transcripts()[STREAM]))["errors"].verdict == "pass"
    # What only leads elsewhere is no answer to read.
    moved = each(None, lambda e: changed(e, status=307, headers=[("location", "http://127.0.0.1:9/")]))
    assert {f.verdict for f in findings(moved(transcripts()[STREAM])).values()} == {"skipped"}


def test_two_passes_find_the_same() -> None:
    seen = [mutation(transcripts()[scenario]) for scenario, _, mutation, _ in MUTANTS]

    assert read_again("openai", seen) == read_again("openai", seen)


@given(st.sampled_from([None, True, False, "x", 0, 1, []]))
def test_a_stream_that_is_neither_true_nor_false_is_no_call(value: Any) -> None:
    body = json.dumps({"model": "m", "messages": [], "stream": value}).encode()
    exchange = Exchange(
        method="POST", url="http://h/v1/chat/completions", request_headers={}, request_body=body, status=200
    )

    assert (call_of(exchange) is None) == (type(value) not in (type(None), bool))
