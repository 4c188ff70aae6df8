"""Judge our server in a separate process, or any other server by its URL (`nox -s conformance`).

`--serve OPTION …` starts our server with options of `plumbline serve`, such as another engine.
"""

from __future__ import annotations

import sys

from own_server.launch import KEY, MODEL, DidNotStart, free_port, launched_server
from plumbline_conformance.cli import main
from plumbline_conformance.cli.check import check
from plumbline_conformance.suite.scenario import Target

__all__ = ["run"]

_PATIENCE = 180.0
"""Seconds for one request, which takes one second on a free machine and over a minute on a loaded one."""


def run() -> int:
    """Run `plumbline check` with the arguments; without arguments, on our server with the pocket model."""
    options = sys.argv[2:] if sys.argv[1:2] == ["--serve"] else []
    if len(sys.argv) > 1 and not options:
        return main(["check", *sys.argv[1:]])
    # The judge runs an MCP server there, which our server may call (TOOL-21).
    mcp = f"127.0.0.1:{free_port()}"
    options = [f"--served-model-name={MODEL}", f"--allow-mcp={mcp}", *options]
    try:
        # A key is set so that the refusal of wrong keys is judged as well (HTTP-06).
        with launched_server(KEY, *options) as base_url:
            return check(
                Target(base_url=base_url, model=MODEL, api_key=KEY, mcp=mcp), trials=3, timeout=_PATIENCE
            )
    except DidNotStart:
        print("The server did not start; its log above has the reason.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(run())
