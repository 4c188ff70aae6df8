"""The printed command sends what was sent: it is given to a shell in which curl says what it was called with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plumbline_conformance.reproduce import curl
from plumbline_conformance.transcript import Exchange

CURL = "#!/bin/sh\nprintf '%s\\0' \"$@\"\nprintf '\\0'\nif [ -p /dev/stdin ]; then cat; fi\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("bin")
    (found / "curl").write_text(CURL, "utf-8")
    (found / "curl").chmod(0o755)
    return found


def sent(command: str, folder: Path) -> tuple[list[str], bytes]:
    """The arguments of curl, and its body."""
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "OPENAI_API_KEY": "the key"}
    out = subprocess.run(["sh", "-c", command], env=environment, stdout=subprocess.PIPE, check=True).stdout
    arguments, _, body = out.partition(b"\0\0")
    found = arguments.decode().split("\0")
    place = found.index("--data-binary")
    return found, body if found[place + 1] == "@-" else found[place + 1].encode()


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=60))
@example(b'it\'s "$HOME" `id` \\n %s')
@example(b"@/etc/passwd")
@example(b"-\x00")
@example(b"\x00\xff%d\\'\n")
def test_the_command_sends_the_very_bytes(folder: Path, content: bytes) -> None:
    exchange = Exchange(
        method="POST",
        url="http://127.0.0.1:1/v1/a?b=$(id)&c='d'",
        request_headers={"content-type": "application/json", "authorization": "Bearer secret"},
        request_body=content,
    )

    arguments, body = sent(curl(exchange), folder)

    assert body == content
    assert "http://127.0.0.1:1/v1/a?b=$(id)&c='d'" in arguments
    assert "content-type: application/json" in arguments
    assert "authorization: Bearer the key" in arguments
    assert "-X" not in arguments


def test_methods_that_a_body_does_not_imply_are_named() -> None:
    def command(method: str, content: bytes) -> str:
        return curl(Exchange(method=method, url="http://h/", request_headers={}, request_body=content))

    assert command("GET", b"") == "curl -sS -N -i http://h/"
    assert "-X DELETE" in command("DELETE", b"")
    assert "-X PUT" in command("PUT", b"{}")
    assert "a body of 30000 bytes" in command("POST", b"x" * 30_000)
