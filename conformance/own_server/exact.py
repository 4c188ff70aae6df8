"""Compare our server's answers with the scripts of a checkpoint: `exact.py FOLDER [OPTION of plumbline serve …]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from own_server.launch import DidNotStart, launched_server
from plumbline_conformance.cli import main

__all__ = ["run"]

_MODEL = "scripted"


def run(argv: Sequence[str]) -> int:
    """Start our server with a scripted checkpoint, and compare; without `--model`, it serves the folder itself."""
    folder, *options = argv
    if "--model" not in options:
        options += ["--model", folder]
    try:
        with launched_server(None, f"--served-model-name={_MODEL}", *options) as base_url:
            return main(["compare", base_url, folder, "--model", _MODEL])
    except DidNotStart:
        print("The server did not start; its log above has the reason.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
