"""`nox -s fuzz`: our strategies and schemathesis, one after the other, on our own server or on another one."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from plumbline_conformance.case import Target
from plumbline_conformance.commands import run_fuzz
from plumbline_conformance.own import MODEL, DidNotStart, our_server

__all__ = ["fuzz", "main", "schemathesis"]

_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
"""Not `negative_data_rejection`: an unknown field is data that the schema does not have, and is ignored (HTTP-09)."""
_LEFT_OUT = "/openapi.yaml"
"""schemathesis reads YAML before it looks at it, and then misses the string that the contract promises."""
_PHASES = "examples,coverage,fuzzing,stateful"
_OPERATIONS = 17
_EVENTS = 100_000
"""It reads twenty events of a stream unless it is told otherwise, and the end is where the faults are."""


def schemathesis(base_url: str, *, examples: int, seed: int, phases: str = _PHASES) -> int:
    """Run schemathesis against the contract that the server itself shows; gives its exit status.

    All its phases: the contract's examples, every boundary of every schema (about 9,000 requests), random requests, and
    chains of requests along the contract's links, which lead from a stored response to what can be done with it.
    """
    root = base_url.removesuffix("/v1")
    program = str(Path(sys.executable).parent / "schemathesis")
    command = ["run", f"{root}/openapi.json", "--url", root]
    command += ["--phases", phases, "--mode", "all", "--checks", _CHECKS]
    command += ["--exclude-path", _LEFT_OUT, "--continue-on-failure", "--seed", str(seed)]
    command += ["--max-examples", str(max(1, examples // _OPERATIONS))]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        config.write_text(f"max-stream-events = {_EVENTS}\n", "utf-8")
        # It keeps what it found beside where it runs, which is no business of a later run.
        arguments = [program, "--config-file", str(config), *command]
        return subprocess.run(arguments, cwd=folder, check=False).returncode


def fuzz(base_url: str, model: str, *, examples: int, seed: int, phases: str = _PHASES) -> int:
    """Both; the worse status of the two."""
    ours = run_fuzz(
        Target(base_url=base_url, model=model),
        (),
        examples=examples,
        seed=seed,
        patience=60.0,
        json_file=None,
    )
    return max(ours, schemathesis(base_url, examples=examples, seed=seed, phases=phases))


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options, start our server if no other one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, metavar="N", help="for each of the two")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phases", default=_PHASES, help="of schemathesis; coverage alone takes minutes")
    parser.add_argument("--base-url", metavar="URL")
    parser.add_argument("--model", default=MODEL)
    arguments = parser.parse_args(argv)
    options = {"examples": arguments.examples, "seed": arguments.seed}
    if arguments.base_url:
        return fuzz(arguments.base_url, arguments.model, phases=arguments.phases, **options)
    try:
        with our_server() as base_url:
            return fuzz(base_url, arguments.model, phases=arguments.phases, **options)
    except DidNotStart:
        print("the server did not come up", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
