"""`plumbline run` talks to a running server, or to one of its own that ends with it."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.servers.live import live
from support.speaking import speaking

from plumbline.cli import main
from plumbline.server.settings import Settings

ANSWER = "3, 4, 5, 6, 7"


def _run(*arguments: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plumbline", "run", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_one_question_is_answered_by_the_running_server(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with live(lambda: speaking("hello"), Settings(api_keys=("secret",))) as server:
        asked = ["run", "--url", f"{server.url}/v1", "test-model", "hi"]
        assert main([*asked, "--api-key", "secret"]) == 0
        assert "hello" in capfd.readouterr().out
        assert main([*asked, "--api-key", "secret", "--set", "temperature=9"]) == 1
        assert "temperature" in capfd.readouterr().err
        assert main([*asked, "--api-key", "secret", "--set", "temprature=0"]) == 0
        assert "The server does not know: temprature (temperature?)" in capfd.readouterr().err
        assert main([*asked, "--api-key", "wrong"]) == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["--url", "http://127.0.0.1:1/v1", "m", "hi"],
            "no server of the API answers at http://127.0.0.1:1/v1",
        ),
        (["--url", "127.0.0.1:8000", "m", "hi"], "--url must begin with http:// or https://"),
        (["no-such-model", "hi"], "NAME cannot be used: no-such-model is neither a folder"),
        (["--set", "temperature", "m", "hi"], "--set must be FIELD=VALUE"),
        (["--tools", "/nowhere.json", "m", "hi"], "--tools names /nowhere.json, which cannot be read"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert reason in line


def test_an_own_server_ends_with_the_conversation(tmp_path: Path) -> None:
    """It answers a piped question, a person at a terminal, and leaves no process and no file."""
    found = _run("plumbline-pocket", "Count from 3", text="to 7.", TMPDIR=str(tmp_path))
    assert (found.returncode, found.stdout.strip()) == (0, ANSWER), found.stderr
    assert list(tmp_path.iterdir()) == []

    environment = {**os.environ, "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "plumbline", "run"], environment)
    seen = ""

    def until(text: str) -> None:
        nonlocal seen
        end = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < end, seen
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 65536).decode()
        seen = seen.partition(text)[2]

    until(">>> ")
    os.write(terminal, b"Count from 3 to 7.\n")
    until(ANSWER)
    until(">>> ")
    os.write(terminal, b"/show\n")
    until("messages: 2")
    (folder,) = tmp_path.glob("plumbline-run-*")
    server = int(subprocess.check_output(["pgrep", "-of", str(folder)], text=True))
    os.kill(pid, signal.SIGHUP)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    assert not list(tmp_path.glob("plumbline-run-*"))
