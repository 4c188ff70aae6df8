"""A recording can be a row of the table if it is whole, named, small and private; each lack is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from plumbline_conformance.cli import main
from plumbline_conformance.recording.file import Options, Recording, RecordingHeader
from plumbline_conformance.reports import submission
from plumbline_conformance.reports.standing import UNASKED
from plumbline_conformance.reports.submission import problems
from plumbline_conformance.transcript.exchange import Exchange, Transcript

NAMES = ("models/list", "chat/text")
OPTIONS = Options(trials=0, concurrency=1, timeout=1.0)
RECORDED = Path(__file__).parents[3] / "conformance" / "recordings" / "mlx-lm.jsonl.gz"


def exchange(**changes: object) -> Exchange:
    values: dict[str, object] = {
        "method": "GET", "url": "http://127.0.0.1/v1/models", "request_headers": {}, "request_body": b"",
        "status": 200,
    }  # fmt: skip
    return Exchange(**{**values, **changes})  # type: ignore[arg-type]


def recording(found: Exchange | None = None) -> Recording:
    header = RecordingHeader(
        base_url="http://h/v1", model="m", started="", server="a server 1.2", options=OPTIONS
    )
    seen = [Transcript(scenario=name, exchanges=[found or exchange()]) for name in NAMES]
    return Recording(header=header, transcripts=seen)


def with_header(**changes: object) -> Callable[[Recording], Recording]:
    return lambda found: msgspec.structs.replace(
        found, header=msgspec.structs.replace(found.header, **changes)
    )


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(submission, "SCENARIOS", dict.fromkeys(NAMES))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"x")
    return path


def test_a_whole_recording_can_be_taken(file: Path) -> None:
    assert list(problems(file, recording())) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_header(by="watch"), "live traffic"),
        (with_header(chosen=["chat/text/shape"]), "a part of the checks"),
        (with_header(options=msgspec.structs.replace(OPTIONS, profile="chat")), "a part of the checks"),
        (with_header(server=""), "does not name the server"),
        (with_header(server="a server"), "does not name the server"),
        (
            lambda found: msgspec.structs.replace(found, transcripts=found.transcripts[:1]),
            "lacks 1 scenarios",
        ),
        (
            lambda found: msgspec.structs.replace(
                found,
                transcripts=[msgspec.structs.replace(one, skipped=UNASKED) for one in found.transcripts],
            ),
            "was interrupted",
        ),
    ],
)
def test_what_a_recording_lacks_is_one_sentence(
    file: Path, change: Callable[[Recording], Recording], words: str
) -> None:
    (sentence,) = problems(file, change(recording()))
    assert words in sentence


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (exchange(frames=[(0.0, b'{"key": "sk-' + b"a1" * 20 + b'"}')]), "a key in its answer"),
        (exchange(request_body=b"/home/ada/model"), "a path of a person in its request"),
        (exchange(request_body=b'{"a": "C:\\\\Users\\\\ada"}'), "a path of a person in its request"),
        (exchange(request_body=b"AIza" + b"a1_-x" * 7), "a key in its request"),
        (exchange(headers=[("x-owner", "ada@company.org")]), "an e-mail address in its headers"),
        (exchange(url="http://h/v1?user=ada@company.org"), "an e-mail address in its address"),
    ],
)
def test_what_is_private_is_found(file: Path, found: Exchange, words: str) -> None:
    assert [words in sentence for sentence in problems(file, recording(found))] == [True, True]


def test_a_large_recording_is_refused(file: Path) -> None:
    file.write_bytes(b"x" * (1024 * 1024 + 1))
    (sentence,) = problems(file, recording())
    assert "1048577 bytes" in sentence


def test_the_command_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["judge", str(RECORDED), "--submission"]) == 1
    assert "scenarios of this suite" in capsys.readouterr().out
    (tmp_path / "none.jsonl").write_text("{", "utf-8")
    assert main(["judge", str(tmp_path / "none.jsonl"), "--submission"]) == 2
