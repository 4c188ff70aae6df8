"""The committed recordings replay to their verdicts, and every violation in them is explained."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "conformance" / "reference_servers"))

import environments  # noqa: E402
from environments import Environment, MissingServer  # noqa: E402
from pages import committed_files, differences, recordings  # noqa: E402
from servers import PEERS, PeerServer  # noqa: E402
from supervisor import supervised  # noqa: E402

from plumbline_conformance.cli.matrix import replayed  # noqa: E402
from plumbline_conformance.recording.file import read_recording  # noqa: E402
from plumbline_conformance.reports.baseline import VIOLATIONS  # noqa: E402
from plumbline_conformance.reports.matrix.explained import (  # noqa: E402
    Explanation,
    Explanations,
    UnreadableExplanations,
    read_explanations,
)

RECORDINGS = recordings(ROOT)
FOREIGN = [name for name in RECORDINGS if not PEERS[name].ours]
COMMITTED = json.loads((ROOT / "conformance" / "recordings" / "verdicts.json").read_text("utf-8"))


def test_ten_foreign_servers_are_recorded() -> None:
    assert len(FOREIGN) >= 10


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=() if name in ("plumbline", "transformers", "llama-server") else pytest.mark.long
        )
        for name in RECORDINGS
    ],
)
def test_a_recording_replays_to_its_verdicts(name: str) -> None:
    found = {result.check: result.verdict for result in replayed(RECORDINGS[name]).results}

    assert found == COMMITTED[name]


@pytest.mark.parametrize("name", [name for name in RECORDINGS if PEERS[name].ours])
def test_our_server_breaks_nothing(name: str) -> None:
    """A lenient server accepts five stop strings, as the page about compatibility says, and differs in nothing else."""
    broken = {
        check
        for check, verdict in COMMITTED[name].items()
        if verdict in ("fail", "warn", "untestable", "error")
    }
    stops = {"errors/chat-bounds/refused", "chat/bounds/refused", "completions/bounds/refused"}
    assert broken == (stops if name == "plumbline-lenient" else set())


@pytest.mark.parametrize("name", [*FOREIGN, "plumbline-lenient"])
def test_every_violation_is_explained_in_sentences_and_nothing_else(name: str) -> None:
    """Each accusation of a released server, a warning too, needs a sentence by somebody who has reviewed it."""
    explanations = read_explanations(RECORDINGS[name].parent / f"{name}.toml")

    assert explanations.missing(COMMITTED[name]) == []
    assert explanations.stale(COMMITTED[name]) == []
    for found in explanations.explanation:
        assert found.checks
        assert len(found.why) > 40
        assert found.why.endswith(".")


@pytest.mark.long
def test_the_pages_match_the_recordings() -> None:
    stale = [path.name for path, text in committed_files(ROOT).items() if path.read_text("utf-8") != text]

    assert stale == [], "write them with `nox -s peers -- --again`"


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_names_its_server_and_no_machine(name: str) -> None:
    found = read_recording(RECORDINGS[name])

    assert re.search(r"\d", found.header.server)
    for seen in found.transcripts:
        for exchange in seen.exchanges:
            written = (exchange.request_body + exchange.body, repr(exchange.headers).encode())
            assert [
                place for text in written for place in re.findall(rb"/(?:home|root|tmp|work)/\w+", text)
            ] == []


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if not peer.ours])
def test_pins_are_exact(name: str) -> None:
    lines = (
        (ROOT / "conformance" / "reference_servers" / "pins" / f"{name}.txt").read_text("utf-8").splitlines()
    )

    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    built = [source for source in [PEERS[name].source] if source is not None]
    assert any(
        line.partition("==")[0].replace("_", "-") == PEERS[name].package.replace("_", "-")
        for line in (*pins, *built)
    )


@pytest.mark.long
def test_what_cannot_be_installed_is_absent_for_pips_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none.txt").write_text("a-package-that-nobody-has==1\n", "utf-8")
    monkeypatch.setattr(environments, "PINS", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(MissingServer, match="a-package-that-nobody-has"):
        Environment("none", PeerServer(title="", package="", command=()), tmp_path)


def test_explanations_list_what_is_missing_and_what_is_stale() -> None:
    name = FOREIGN[0]
    verdicts = COMMITTED[name]
    passed = next(check for check, verdict in verdicts.items() if verdict == "pass")
    broken = [check for check, verdict in verdicts.items() if verdict in VIOLATIONS]

    explanations = Explanations(explanation=[Explanation(why="so", checks=[passed, broken[0], broken[0]])])

    assert explanations.stale(verdicts) == [passed, broken[0]]
    assert explanations.missing(verdicts) == broken[1:]


@pytest.mark.parametrize("content", ["x", "[[explanation]]\nwhy = 1", "[[explanation]]\nwhat = 'x'", "a = 1"])
def test_a_file_without_explanations_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(content, "utf-8")

    with pytest.raises(UnreadableExplanations):
        read_explanations(path)


DIFFERENCES = differences(ROOT)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_difference_is_explained_once_and_nothing_else(name: str) -> None:
    _, run, why = DIFFERENCES[name]

    told = sorted(found for names in why.values() for found in names)

    wanted = {*(found.name for found in run.differences), *(f"unclear: {probe}" for probe in run.unclear)}
    assert told == sorted(wanted)
    assert all(len(sentence) > 40 and sentence.endswith(".") for sentence in why)


def test_three_foreign_servers_are_compared_with_ours() -> None:
    assert len(DIFFERENCES) >= 3


def test_a_server_that_dies_is_started_again_until_the_block_ends() -> None:
    processes: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def start() -> Iterator[subprocess.Popen[bytes]]:
        processes.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        try:
            yield processes[-1]
        finally:
            processes[-1].kill()
            processes[-1].wait()

    with supervised(start):
        processes[0].kill()
        end = time.monotonic() + 10
        while len(processes) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert processes[1].poll() is None

    assert len(processes) == 2
    assert all(process.poll() is not None for process in processes)
