"""Start a peer's runner and ask it questions, one JSON line each."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from plumbline_conformance.console.options import UnusableInput

__all__ = ["NoRunner", "VectorRunner"]

FORMAT = 1
_MOST_BYTES = 4 * 1024 * 1024
"""Bytes of one line; a longer one is no answer."""
_TOLERATED = 20
"""Questions without an answer after which the runner is given up."""


class NoRunner(UnusableInput):
    """The runner does not start, or gives no usable answers."""


class VectorRunner:
    """A process that answers questions; it is started again after a crash or a time-out.

    Args:
        command: the program and its arguments.
        timeout: seconds for one answer.

    Raises:
        NoRunner: it does not start.
    """

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._command = command
        self._timeout = timeout
        self._unanswered = 0
        self._start()

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise NoRunner(f"--run {self._command[0]} does not start: {error.strerror}") from error
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        # A runner may import large packages before it answers.
        hello = self._answer({"hello": FORMAT}, max(self._timeout, 120.0))
        if not isinstance(hello, dict) or not isinstance(hello.get("name"), str):
            self.close()
            raise NoRunner('the first answer of the runner is not {"name": …, "version": …}.')
        self.name = hello["name"]
        self.version = str(hello.get("version", ""))

    @staticmethod
    def _read(process: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
        assert process.stdout is not None
        while line := process.stdout.readline(_MOST_BYTES):
            lines.put(line)
        lines.put(b"")

    def ask(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a question; a missing or unreadable one is `{"error": why}`.

        Raises:
            NoRunner: too many questions have had no answer.
        """
        found = self._answer(line, self._timeout)
        if isinstance(found, dict):
            return found
        self._unanswered += 1
        if self._unanswered > _TOLERATED:
            raise NoRunner(f"{_TOLERATED} questions had no answer; the last reason: {found}")
        self.close()
        self._start()
        return {"error": found}

    def _answer(self, line: dict[str, Any], timeout: float) -> dict[str, Any] | str:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            self._process.stdin.flush()
            found = self._lines.get(timeout=timeout)
        except OSError:
            return "the runner has ended"
        except queue.Empty:
            return f"no answer in {timeout:g} s"
        if not found:
            return "the runner has ended"
        try:
            answer = json.loads(found)
        except (ValueError, RecursionError):
            return "the answer is not one line of JSON"
        return answer if isinstance(answer, dict) else "the answer is not an object"

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # What was not sent any more.
                    stream.close()
