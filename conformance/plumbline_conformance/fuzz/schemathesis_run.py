"""schemathesis, started as a program of its own: every boundary of every schema, and chains along the links."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plumbline_conformance.console.terminal import INTERRUPTED, put
from plumbline_conformance.recording.redaction import concealed
from plumbline_conformance.suite.contract import document
from plumbline_conformance.suite.model import Target

__all__ = ["PHASES", "run_schemathesis", "why_not"]

PHASES = "examples,coverage,fuzzing,stateful"
_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
"""Not `negative_data_rejection`: an unknown field is data that the schema does not have, and is ignored (HTTP-09)."""
_LEFT_OUT = "/openapi.yaml"
"""schemathesis reads YAML before it looks at it, and then misses the string that the contract promises."""
_OPERATIONS = 17
_EVENTS = 100_000
"""It reads twenty events of a stream unless it is told otherwise, and the end is where the faults are."""
_KEY = "PLUMBLINE_SCHEMATHESIS_KEY"
"""The variable that has the key: what stands on a command line is read by everybody on the machine."""


def why_not(target: Target) -> str | None:
    """Why schemathesis cannot be run on a server, if so."""
    if importlib.util.find_spec("schemathesis") is None:
        return "--schemathesis needs the package schemathesis. Install it with: pip install 'plumbline[fuzz]'"
    if urlsplit(target.base_url).query:
        return (
            "schemathesis cannot send the query of the base URL with each request; leave --schemathesis out."
        )
    return None


def run_schemathesis(
    target: Target,
    *,
    examples: int,
    seed: int,
    phases: str = PHASES,
    operations: Sequence[str] = (),
    patience: float = 60.0,
    shown: bool = False,
) -> int:
    """Run schemathesis on a server; 0 nothing, 1 found, 2 could not run, 130 interrupted.

    Args:
        target: the server; its key goes with every request and is in nothing that is printed.
        examples: random requests in all; the other phases send what the contract has, about 9,000 requests.
        seed: of what is random.
        phases: the contract's examples, every boundary of every schema (`coverage`), random requests (`fuzzing`), and
            chains along the contract's links, from a stored response to what can be done with it (`stateful`).
        operations: their ids; all if there are none.
        patience: seconds to wait for an answer.
        shown: take the contract that the server itself shows, which has operations beside OpenAI's API.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = target.base_url.removesuffix("/v1")
        if shown:
            place, url = f"{root}/openapi.json", root
        else:
            place, url = str(Path(folder) / "openapi.json"), target.base_url
            Path(place).write_text(json.dumps(_contract(target.model)), "utf-8")
        config = Path(folder) / "schemathesis.toml"
        headers = f'headers = {{ Authorization = "Bearer ${{{_KEY}}}" }}\n' if target.api_key else ""
        config.write_text(f"max-stream-events = {_EVENTS}\n{headers}", "utf-8")
        program = str(Path(sys.executable).parent / "schemathesis")
        command = [program, "--config-file", str(config), "run", place, "--url", url]
        command += ["--phases", phases, "--mode", "all", "--checks", _CHECKS]
        command += ["--exclude-path", _LEFT_OUT, "--continue-on-failure", "--seed", str(seed)]
        command += ["--request-timeout", str(patience)]
        command += ["--max-examples", str(max(1, examples // (len(operations) or _OPERATIONS)))]
        for name in operations:
            command += ["--include-operation-id", name]
        # It keeps what it found beside where it runs, which is no business of a later run.
        return _run_redacted(command, folder, target.api_key)


def _contract(model: str) -> dict[str, Any]:
    """OpenAI's API as the contract has it, below a base URL; the model is the one that the server has."""
    found: dict[str, Any] = json.loads(json.dumps(document()))
    found["paths"] = {
        path.removeprefix("/v1"): methods
        for path, methods in found["paths"].items()
        if path.startswith("/v1/")
    }
    schemas = found["components"]["schemas"]
    for methods in found["paths"].values():
        for operation in methods.values():
            body = operation.get("requestBody", {}) if isinstance(operation, dict) else {}
            for content in body.get("content", {}).values():
                name = content["schema"].get("$ref", "").rsplit("/", 1)[-1]
                members = schemas.get(name, {}).get("properties", {})
                if "model" in members:
                    members["model"] = {"type": "string", "enum": [model]}
    return found


def _run_redacted(command: list[str], folder: str, key: str | None) -> int:
    """Run it and pass on what it says, without the key that a server repeats."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **({_KEY: key} if key else {})}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            put(concealed(line, [key] if key else []), end="")
        status = process.wait()
    except KeyboardInterrupt:
        put("Interrupted: schemathesis had not ended.")
        return INTERRUPTED
    finally:
        # On a terminal both are interrupted together; where only this process was, the other one must not go on.
        process.terminate()
        process.wait()
        process.stdout.close()
    return status if status in (0, 1) else 2
