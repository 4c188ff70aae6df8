"""Test closed pipes, limited encodings and Ctrl-C: reports are written, without a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from example_servers.asgi import live_and_end
from example_servers.good_server import KEY, MODEL, serving
from example_servers.reference import application

from plumbline_conformance.cli import main
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.reports.baseline import Baseline
from plumbline_conformance.reports.standing import UNASKED

ENTRIES: list[Any] = ["plumbline.cli", pytest.param("plumbline_conformance.cli", marks=pytest.mark.long)]
"""The complete command, and the judge alone."""
RUN = """
import importlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
"""

pytestmark = pytest.mark.long  # Each test starts processes.


def started(
    entry: str, words: Sequence[str], *, background: bool = False, **environment: str
) -> subprocess.Popen[bytes]:
    """Start a command with a pipe for its output, or as a shell script starts one in the background."""
    path = os.pathsep.join(place for place in sys.path if place)
    return subprocess.Popen(
        [sys.executable, "-c", RUN, entry, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OPENAI_API_KEY": KEY, **environment},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN) if background else None,
    )


def unparsed(entry: str, words: Sequence[str], *, lines: int = 0) -> tuple[int, bytes]:
    """Read this many lines, close the pipe; return exit status and standard error."""
    with started(entry, words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        return process.wait(60), errors


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_reader_that_leaves_changes_neither_the_status_nor_the_files(entry: str, tmp_path: Path) -> None:
    report, page, known = (tmp_path / name for name in ("r.json", "r.html", "known.json"))
    files = ["--json", str(report), "--html", str(page), "--baseline", str(known), "--update-baseline"]
    with serving(application()) as base_url:
        status = unparsed(entry, ["check", base_url, "models", "--model", MODEL, *files])

    assert status == (0, b"")
    assert json.loads(report.read_text("utf-8"))["counts"].keys() == {"pass"}
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert Baseline.read(known) == Baseline()


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_violation_is_one_though_nobody_reads_of_it(entry: str, tmp_path: Path) -> None:
    async def empty(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live_and_end(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    report = tmp_path / "r.json"
    with serving(empty) as base_url:
        words = ["check", base_url, "errors", "--model", MODEL, "--json", str(report)]
        assert unparsed(entry, words, lines=1) == (1, b"")

    assert json.loads(report.read_text("utf-8"))["counts"]["fail"] > 0


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("words", [["list"], ["list", "--rules"], ["explain", "chat/text/shape"], ["--help"]])
def test_a_list_may_be_read_in_part(entry: str, words: list[str]) -> None:
    for lines in (0, 1):
        assert unparsed(entry, words, lines=lines) == (0, b"")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_an_encoding_lacks_is_an_escape(entry: str, encoding: str) -> None:
    words = ["explain", "R-17", "HTTP-03", "chat/stream-text/done"]
    with started(entry, words, PYTHONIOENCODING=encoding) as process:
        out, error = process.communicate(timeout=60)

    assert (process.returncode, error) == (0, b"")
    with started(entry, words, PYTHONIOENCODING="utf-8") as process:
        whole, _ = process.communicate(timeout=60)
    assert out.decode(encoding) == whole.decode("utf-8").encode(encoding, "backslashreplace").decode(encoding)
    assert whole.decode("utf-8").isascii() is False, "there is something to escape"


def hanging(reached: threading.Event) -> Any:
    """Return the reference, which never answers a streaming chat request."""
    inner = application()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await inner(scope, receive, send)
            return
        messages: list[Any] = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        body = b"".join(part.get("body", b"") for part in messages)

        async def again() -> Any:
            return messages.pop(0) if messages else await receive()

        if scope["path"].endswith("/chat/completions") and b'"stream": true' in body:
            reached.set()
            await receive()  # Wait until the client is gone.
            return
        await inner(scope, again, send)

    return serve


def counting(asked: list[str]) -> Any:
    """Return the reference, which keeps the paths of the requests."""
    inner = application()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
        await inner(scope, receive, send)

    return serve


def interrupted(
    entry: str, words: Sequence[str], reached: threading.Event, number: int = signal.SIGINT
) -> str:
    """Interrupt a command when its server hangs; return its output."""
    # A background job of a script ignores SIGINT, and must still end by SIGTERM.
    with started(entry, words, background=number == signal.SIGTERM) as process:
        assert reached.wait(60)
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error.decode()
    assert b"Traceback" not in error
    return out.decode()


def test_a_run_that_sigterm_ended_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had ended is judged by the recording; a recording of another server is refused."""
    run, whole = tmp_path / "run.jsonl", tmp_path / "whole.jsonl"
    reached = threading.Event()
    with serving(hanging(reached)) as base_url:
        words = ["check", base_url, "chat/text", "chat/stream-text", "models", "--model", MODEL]
        said = interrupted(
            ENTRIES[0], [*words, "--record", str(run), "--concurrency", "1"], reached, signal.SIGTERM
        )
        port = int(base_url.rpartition(":")[2].partition("/")[0])
    assert "scenarios had ended" in said
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    asked: list[str] = []
    with serving(counting(asked), port) as base_url:
        assert main([*words, "--resume", str(run), "--record", str(whole)]) == 0
    with serving(counting([])) as other:
        assert main(["check", other, "models", "--model", MODEL, "--resume", str(run)]) == 2
    assert "cannot be resumed" in capsys.readouterr().err
    assert all(seen.skipped is None for seen in read_recording(whole).transcripts)
    assert asked.count("/v1/chat/completions") == 3, "whether the model is there, and the two of the stream"


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_interrupted_check_keeps_what_had_ended_and_lists_what_had_not(
    entry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, first, second = (tmp_path / name for name in ("run.jsonl", "a.json", "b.json"))
    reached = threading.Event()
    with serving(hanging(reached)) as base_url:
        words = [
            "check",
            base_url,
            "chat/text",
            "chat/stream-text",
            "models",
        ]
        files = ["--model", MODEL, "--record", str(run), "--json", str(first)]
        out = interrupted(entry, [*words, *files, "--concurrency", "1"], reached)

    assert "Traceback" not in out
    assert "skipped the rest, " in out
    recorded = {seen.scenario: seen for seen in read_recording(run).transcripts}
    ended = [name for name, seen in recorded.items() if seen.skipped != UNASKED]
    assert f"Interrupted: {len(ended)} of {len(recorded)} scenarios had ended" in out
    assert f"--resume {run} " in out
    assert ended == ["chat/text"]
    results = json.loads(first.read_text("utf-8"))["results"]
    assert {result["verdict"] for result in results} == {"pass", "skipped"}
    assert main(["judge", str(run), "--json", str(second)]) == 2, "a part never passes for the whole"
    assert json.loads(second.read_text("utf-8"))["results"] == results
    assert capsys.readouterr().out in out


def test_an_interrupted_search_keeps_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    reached = threading.Event()
    with serving(hanging(reached)) as base_url:
        words = ["fuzz", base_url, "createChatCompletion", "--model", MODEL]
        out = interrupted(ENTRIES[0], [*words, "--json", str(file), "--examples", "3000"], reached)

    assert "Interrupted before the end of the search" in out
    assert json.loads(file.read_text("utf-8")) == []


def test_an_interrupted_comparison_reports_that_nothing_was_saved(tmp_path: Path) -> None:
    reached = threading.Event()
    file = tmp_path / "found.json"
    with serving(hanging(reached)) as base_url:
        words = [
            "compare",
            base_url,
            base_url,
            "--model",
            MODEL,
            "--reference-api-key",
            KEY,
            "--json",
            str(file),
        ]
        out = interrupted(ENTRIES[0], [*words, "--examples", "200"], reached)

    assert "there is no result" in out
    assert not file.exists()
