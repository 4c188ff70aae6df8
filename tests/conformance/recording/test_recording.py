"""A recording gets the verdicts of its run, and contains no secrets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from example_servers.good_server import KEY as SERVERS_KEY
from example_servers.good_server import MODEL, serving, transcripts
from example_servers.reference import application
from hypothesis import given
from hypothesis import strategies as st
from mutants import MUTANTS

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli import main
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import (
    Options,
    Recorder,
    RecordingHeader,
    UnreadableRecording,
    read_recording,
)
from plumbline_conformance.recording.redaction import _is_secret, fingerprint, redacted, redacted_url
from plumbline_conformance.reports.report import read_report
from plumbline_conformance.transcript.exchange import Exchange, Transcript

HEADER = RecordingHeader.of("http://127.0.0.1:1/v1", "m")
KEY = "sk-not-to-be-written"


def recorded(path: Path, *seen: Transcript, header: RecordingHeader = HEADER, key: str | None = None) -> Path:
    with Recorder(path, header, secrets=[key] if key else []) as recorder:
        for transcript in seen:
            recorder.add(transcript)
    return path


def test_a_recording_of_a_good_server_gives_the_same_verdicts(tmp_path: Path) -> None:
    seen = transcripts()

    read = read_recording(recorded(tmp_path / "run.jsonl", *seen.values()))

    assert read.header == HEADER
    assert [judge(found) for found in read.transcripts] == [judge(found) for found in seen.values()]


@pytest.mark.long
def test_a_recording_of_each_mutant_gives_the_same_verdicts(tmp_path: Path) -> None:
    broken = [mutation(transcripts()[scenario]) for scenario, _, mutation, _ in MUTANTS]

    read = read_recording(recorded(tmp_path / "run.jsonl", *broken, key=KEY))

    assert [judge(found) for found in read.transcripts] == [judge(found) for found in broken]


def test_the_report_of_an_older_recording_can_be_compared_with_one_of_today(tmp_path: Path) -> None:
    """The advice of `matrix` for reports of different suites is to judge the recordings again."""
    older = msgspec.structs.replace(HEADER, suite={"version": "0.0.1"})
    good = transcripts()["models/list"]
    run = recorded(tmp_path / "run.jsonl", good, header=older)

    main(["judge", str(run), "--json", str(tmp_path / "judged.json")])

    assert read_report(tmp_path / "judged.json").run.suite == HEADER.suite


def test_a_compressed_recording_has_the_same_in_it(tmp_path: Path) -> None:
    seen = transcripts()

    plain = recorded(tmp_path / "run.jsonl", *seen.values())
    packed = recorded(tmp_path / "run.jsonl.gz", *seen.values())
    again = recorded(tmp_path / "again.jsonl.gz", *seen.values())

    assert msgspec.json.encode(read_recording(packed)) == msgspec.json.encode(read_recording(plain))
    assert packed.read_bytes() == again.read_bytes()
    assert packed.stat().st_size < plain.stat().st_size / 2


def test_no_beginning_of_a_compressed_recording_is_one(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.jsonl.gz", *transcripts().values())
    content = path.read_bytes()

    @given(st.integers(0, len(content) - 9))
    def law(length: int) -> None:
        path.write_bytes(content[:length])
        with pytest.raises(UnreadableRecording):
            read_recording(path)

    law()


names = st.text().filter(lambda name: not _is_secret(name))
"""Of headers whose values open nothing, so that they are written as they are."""
exchanges = st.builds(
    Exchange,
    method=st.sampled_from(["GET", "POST"]),
    url=st.just("http://127.0.0.1:1/v1/models"),
    request_headers=st.dictionaries(names, st.text(), max_size=2),
    request_body=st.binary(),
    status=st.integers(0, 599),
    headers=st.lists(st.tuples(names, st.text()), max_size=2),
    frames=st.lists(st.tuples(st.floats(0, 60), st.binary()), max_size=4),
    error=st.none() | st.text(),
)


@given(st.lists(exchanges, max_size=3))
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, seen: list[Exchange]) -> None:
    """Every byte, every time, halves of characters too."""
    path = tmp_path_factory.mktemp("recording") / "run.jsonl"
    transcript = Transcript(scenario="a/b", exchanges=seen)

    assert read_recording(recorded(path, transcript)).transcripts == [transcript]


@given(st.integers(0, 60), st.binary(max_size=20), st.binary(max_size=20))
def test_a_key_is_covered_wherever_it_stands(cut: int, before: bytes, after: bytes) -> None:
    """In headers, in bodies, across the edge of two frames; and every frame keeps its length."""
    body = before + KEY.encode() + after
    frames = [(0.0, body[:cut]), (1.0, body[cut:])]
    exchange = Exchange(
        method="POST",
        url=f"http://user:{KEY}@host/v1?api-key={KEY}&x=1",
        request_headers={"Authorization": f"Bearer {KEY}", "x-other": KEY},
        request_body=body,
        headers=[("set-cookie", f"session={KEY}"), ("x-echo", KEY)],
        frames=frames,
        error=f"refused {KEY}",
    )
    _ = exchange.body, exchange.json  # What was cached of the old bytes must not be kept.

    [found] = redacted(Transcript(scenario="a/b", exchanges=[exchange])).exchanges

    assert KEY not in repr(found)
    assert KEY.encode() not in found.body
    assert [len(frame) for _, frame in found.frames] == [len(frame) for _, frame in frames]
    assert "x=1" in found.url


def test_a_key_in_no_header_is_covered_if_it_is_known(tmp_path: Path) -> None:
    exchange = Exchange(method="GET", url="http://h/", request_headers={}, request_body=KEY.encode())

    path = recorded(tmp_path / "run.jsonl", Transcript(scenario="a/b", exchanges=[exchange]), key=KEY)

    assert KEY.encode() not in read_recording(path).transcripts[0].exchanges[0].request_body


def test_the_header_has_a_fingerprint_instead_of_the_key() -> None:
    header = RecordingHeader.of(f"http://u:{KEY}@h/v1", "m", KEY, ["chat"])

    assert KEY not in repr(header)
    assert header.key == fingerprint(KEY)
    assert fingerprint(KEY) != fingerprint(KEY + "x")
    assert header.suite["version"]


def test_addresses_that_are_none_are_not_repeated() -> None:
    assert KEY not in redacted_url(f"http://[{KEY}/v1")


def test_only_the_owner_may_read_a_recording(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run.jsonl").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda lines: lines[:-1], "no footer"),
        (lambda lines: [lines[0], *lines[2:]], "digest"),
        (lambda lines: lines[1:], "header"),
        (lambda lines: [], "header"),
        (lambda lines: [lines[0].replace('"format":1', '"format":2'), *lines[1:]], "format 2"),
        (lambda lines: ["garbage", *lines], "JSON"),
        (lambda lines: ["[1]", *lines], "JSON"),
        (lambda lines: [*lines, lines[-1]], "no footer"),
    ],
)
def test_half_a_recording_is_no_recording(tmp_path: Path, spoil: object, message: str) -> None:
    path = recorded(tmp_path / "run.jsonl", transcripts()["chat/text"])
    lines = path.read_text("ascii").splitlines()
    path.write_text("".join(f"{line}\n" for line in spoil(lines)), "ascii")  # type: ignore[operator]

    with pytest.raises(UnreadableRecording, match=message):
        read_recording(path)


def test_a_run_that_failed_writes_no_footer(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyError), Recorder(path, HEADER):
        raise KeyError

    with pytest.raises(UnreadableRecording, match="footer"):
        read_recording(path)


def test_the_header_lists_what_verdicts_depend_on(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    asked = ("--concurrency", "2", "--timeout", "7.5", "--trials", "0", "--max-tokens-total", "900")

    with serving(application()) as base_url:
        arguments = ("check", base_url, "--model", MODEL, "--api-key", SERVERS_KEY, *asked)
        assert main([*arguments, "--record", str(path), "models"]) in (0, 1)

    options = Options(trials=0, concurrency=2, timeout=7.5, max_tokens_total=900)
    assert read_recording(path).header.options == options


def test_a_recording_without_options_is_read(tmp_path: Path) -> None:
    """As all from before the header had it."""
    assert '"options":null' in recorded(tmp_path / "run.jsonl").read_text("ascii")
    assert (
        msgspec.convert({"base_url": "u", "model": "m", "started": "2026"}, RecordingHeader).options is None
    )
