"""Install clients of others from their registries and run a program with each against our server (`nox -s clients`).

Every client has an environment of its own under `.nox/clients`. Its program exits with an error at the first broken
expectation, and prints a line for each feature that it has seen working.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from clients.registry import CLIENTS, Client
from own_server.launch import KEY, MODEL, DidNotStart, launched_server
from plumbline.pocket import MODEL_DIR

HERE = Path(__file__).parent
ENVIRONMENTS = Path(".nox") / "clients"
ALIAS = "gpt-4.1"
"""Another name of the served model, for clients that take OpenAI's names only."""
TIMEOUT = 300
"""Seconds for one program."""


def run(names: Sequence[str]) -> int:
    """Run the clients of these names, or all; return 0 if every program succeeds."""
    unknown = sorted(set(names) - {client.name for client in CLIENTS})
    if unknown:
        print(f"There is no client {unknown[0]}. There are {', '.join(client.name for client in CLIENTS)}.")
        return 2
    chosen = [client for client in CLIENTS if not names or client.name in names]
    results: list[tuple[Client, str]] = []
    os.environ["PLUMBLINE_MCP_PORT"] = str(_free_port())
    try:
        for scripted in (False, True):
            same = [client for client in chosen if client.scripted == scripted]
            with _server(scripted) if same else nullcontext("") as base_url:
                for client in same:
                    print(f"-- {client.name}", flush=True)
                    results.append((client, _result(client, base_url)))
    except DidNotStart:
        print("The server did not start; its log above has the reason.", file=sys.stderr)
        return 2
    print()
    for client, result in results:
        print(f"{client.name:20}{result:28}{', '.join(client.packages)}")
    return int(any(result != "works" for _, result in results))


def _free_port() -> int:
    """Return a port for the MCP servers that programs start, which the server must allow before."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _server(scripted: bool) -> AbstractContextManager[str]:
    if scripted:
        return launched_server(program=[sys.executable, str(HERE / "scripted_server.py")])
    return launched_server(KEY, *(f"--served-model-name={name}" for name in (MODEL, ALIAS)))


def _result(client: Client, base_url: str) -> str:
    """Install a client and run its program; return how that went, in a few words."""
    folder = (ENVIRONMENTS / client.name).absolute()
    try:
        install(client, folder)
    except subprocess.CalledProcessError:
        return "could not be installed"
    variables = {
        **os.environ,
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": KEY,
        "PLUMBLINE_MODEL": MODEL,
        "PLUMBLINE_ALIAS": ALIAS,
        "PLUMBLINE_TOKENIZER": str(MODEL_DIR),
        # Clients that report their use to somebody else would wait for a network.
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGCHAIN_TRACING_V2": "false",
        "DO_NOT_TRACK": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": "",
    }
    program = HERE / "programs" / client.program
    if client.is_python:
        command = [str(folder / "bin" / "python"), str(program)]
    else:
        # Node looks for packages beside the program.
        command = ["node", str(shutil.copy2(program, folder))]
    began = time.monotonic()
    try:
        ended = subprocess.run(command, env=variables, cwd=folder, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"did not end in {TIMEOUT} s"
    return "works" if ended.returncode == 0 else f"failed after {time.monotonic() - began:.0f} s"


def install(client: Client, folder: Path) -> None:
    """Install the packages of a client, unless exactly these are there."""
    stamp = folder / "installed.txt"
    wanted = "\n".join(client.packages)
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if client.is_python:
        venv.create(folder, with_pip=True)
        pip = [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, *client.packages], check=True)
    else:
        (folder / "package.json").write_text('{"private": true, "type": "module"}', "utf-8")
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
        subprocess.run([*npm, *client.packages], cwd=folder, check=True)
    stamp.write_text(wanted, "utf-8")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
