"""Run schemathesis as a separate process: boundaries of all schemas, and chains along links."""

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

from plumbline_conformance.console.streams import put
from plumbline_conformance.console.terminal import INTERRUPTED
from plumbline_conformance.fuzz.strategies import OPERATORS
from plumbline_conformance.recording.redaction import concealed
from plumbline_conformance.suite.contract import document
from plumbline_conformance.suite.scenario import Target

__all__ = ["PHASES", "run_schemathesis", "why_not"]

PHASES = "examples,coverage,fuzzing,stateful"
_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
"""Without `negative_data_rejection`, because servers may ignore unknown fields (HTTP-09)."""
_LEFT_OUT = "/openapi.yaml"
"""schemathesis decodes the YAML answer, and then reports that it is not a string."""
_PROGRAM = "from schemathesis.cli import schemathesis; schemathesis()"
"""Its program need not be in the folder of the interpreter that finds the package."""
_OPERATIONS = 17
_EVENTS = 100_000
"""Maximum events to read; the default of twenty misses faults at the end of a stream."""
_KEY = "PLUMBLINE_SCHEMATHESIS_KEY"
"""The environment variable for the key, because all users can read command lines."""


def why_not(target: Target) -> str | None:
    """Return the reason why schemathesis cannot run on a server; None if it can."""
    if importlib.util.find_spec("schemathesis") is None:
        return "--schemathesis needs the package schemathesis. In a clone, run: pip install '.[fuzz]'"
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
        target: the server; its key is sent with every request, but never printed.
        examples: total number of random requests; the other phases send about 9,000 requests of the contract.
        seed: the random seed.
        phases: the contract's `examples`, boundaries of all schemas (`coverage`), random requests (`fuzzing`), and
            chains along the contract's links, such as requests about a stored response (`stateful`).
        operations: the ids of the operations; all if empty.
        patience: seconds to wait for an answer.
        shown: use the contract that the server publishes, which may have further operations.
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
        command = [sys.executable, "-c", _PROGRAM, "--config-file", str(config), "run", place, "--url", url]
        command += ["--phases", phases, "--mode", "all", "--checks", _CHECKS]
        command += ["--exclude-path", _LEFT_OUT, "--continue-on-failure", "--seed", str(seed)]
        command += ["--request-timeout", str(patience)]
        command += ["--max-examples", str(max(1, examples // (len(operations) or _OPERATIONS)))]
        for name in operations:
            command += ["--include-operation-id", name]
        # Run in a temporary folder, because schemathesis stores its findings in the working folder.
        return _run_redacted(command, folder, target.api_key)


def _contract(model: str) -> dict[str, Any]:
    """Return the contract's OpenAI API with paths below the base URL, and the server's model name."""
    found: dict[str, Any] = json.loads(json.dumps(document()))
    found["paths"] = {
        path.removeprefix("/v1"): methods
        for path, methods in found["paths"].items()
        if path.startswith("/v1/") and methods.get("post", {}).get("operationId") not in OPERATORS
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
    """Run the command and print its output without the key."""
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
        put("Interrupted before schemathesis ended.")
        return INTERRUPTED
    finally:
        # On a terminal both processes are interrupted; otherwise end schemathesis here.
        process.terminate()
        process.wait()
        process.stdout.close()
    return status if status in (0, 1) else 2
