"""SIGHUP ends a server whose terminal was closed, and reads keys again otherwise."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import fcntl, os, select, signal, sys, termios
# The tests may themselves run under nohup, which a program inherits.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
if sys.argv[1] != "daemon":
    fcntl.ioctl(int(sys.argv[2]), termios.TIOCSCTTY, 0)
from plumbline.server.start.hangup import on_hangup
handle = on_hangup(lambda: print("reload", flush=True), lambda: print("end", flush=True))
signal.signal(signal.SIGHUP, lambda *_: handle())
print("ready", flush=True)
# Not `readline`: a signal just before it would be handled after it only.
while not select.select([sys.stdin], [], [], 0.05)[0]:
    pass
"""


@pytest.mark.parametrize(
    ("how", "closed", "expected"),
    [
        ("plain", True, "end"),
        ("plain", False, "reload"),
        ("nohup", True, "reload"),
        ("daemon", False, "reload"),
    ],
)
def test_a_closed_terminal_ends_the_server(how: str, closed: bool, expected: str) -> None:
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how, str(terminal)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[terminal],
        start_new_session=True,
    )
    os.close(terminal)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if closed:
            os.close(master)
        else:
            process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == f"{expected}\n"
        if not closed:
            process.communicate("\n", timeout=20)
            os.close(master)
