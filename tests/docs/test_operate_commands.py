"""The commands of the operator's checklist print what they should, on a server over TLS with three keys."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
import trustme
from support.servers.ports import free_port

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "operate.md").read_text("utf-8")
BLOCK = re.findall(r"```shell\n(.*?)```", GUIDE, re.DOTALL)[0]
COMMANDS = re.findall(r"^(.*?) +# (.*): (.*)$", BLOCK, re.MULTILINE)
DEFINITIONS = "\n".join(line for line in BLOCK.splitlines() if " # " not in line)
TOOLS = ("bash", "curl", "openssl", "sqlite3")
MARK = "-- the next command --"


def test_the_checklist_is_one_screen() -> None:
    assert len(COMMANDS) >= 14
    assert len(BLOCK.splitlines()) <= 24
    names = " ".join(name for _, name, _ in COMMANDS)
    for topic in ("keys", "TLS", "proxies", "limits", "store", "metrics", "restart", "backup", "upgrade"):
        assert topic in names


@pytest.mark.long
@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}")
def test_each_command_prints_what_it_should(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert.pem"))
    keys = tmp_path / "keys.txt"
    keys.write_text("a-client requests=1000\nanother-client\na-scraper metrics=yes models=none\n")
    keys.chmod(0o600)
    program = tmp_path / "bin" / "plumbline"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m plumbline "$@"\n')
    program.chmod(0o700)
    port = free_port()
    options = (
        "--api-key-file",
        "keys.txt",
        "--ssl-certfile",
        "cert.pem",
        "--store",
        "responses.db",
        "--access-log",
    )
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "plumbline", "serve", "--port", str(port), *options]
        server = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    variables = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "SSL_CERT_FILE": str(tmp_path / "ca.pem"),
        "CURL_CA_BUNDLE": str(tmp_path / "ca.pem"),
        "URL": f"https://localhost:{port}",
        "MODEL": "plumbline-pocket",
        "KEY": "a-client",
        "METRICS": "a-scraper",
        "PID": str(server.pid),
        "LOG": "log",
    }
    script = "\n".join([DEFINITIONS, *(f"{command}\necho; echo '{MARK}'" for command, _, _ in COMMANDS)])
    try:
        _wait(variables["URL"], server)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert server.wait(30) in (0, -15)
    finally:
        server.kill()
        server.wait()
    printed = (done.stdout).split(MARK)
    for (command, name, expected), found in zip(COMMANDS, printed, strict=False):
        if "plumbline serve" not in command:  # It prints on standard error.
            assert expected in found, (name, found, done.stderr)
    assert "responses are kept in backup.db" in done.stderr


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            if httpx2.get(f"{url}/health/ready", verify=False).status_code == 200:
                return
        except httpx2.TransportError:
            pass
    raise AssertionError("the server has ended")
