"""Define the options of `plumbline vectors`, and run it."""

from __future__ import annotations

import argparse
from pathlib import Path

from plumbline_conformance.console.terminal import console
from plumbline_conformance.vectors import run_vectors
from plumbline_conformance.vectors.questions import FOLDER, SUITES

__all__ = ["add_vectors", "vectors"]


def add_vectors(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of the command."""
    parser.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="ids of vectors, prefixes or patterns, such as parsers/hermes (default: all)",
    )
    parser.add_argument(
        "--run",
        metavar="COMMAND",
        help="command of a runner, which answers JSON lines (default: count the vectors)",
    )
    parser.add_argument(
        "--suite", action="append", choices=SUITES, default=[], help="only this suite; repeatable"
    )
    parser.add_argument(
        "--vectors",
        type=Path,
        default=FOLDER,
        metavar="FOLDER",
        help="folder of the vectors (default: conformance/vectors of the clone)",
    )
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="time limit of one answer (default 10)"
    )
    parser.add_argument(
        "--show", type=int, default=20, metavar="N", help="wrong answers that are printed (default 20)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores and all wrong answers")


def vectors(arguments: argparse.Namespace) -> int:
    """Score a runner as the command line says; return the exit status."""
    return run_vectors(
        arguments.run,
        arguments.vectors,
        out=console(),
        suites=arguments.suite,
        ids=arguments.ids,
        timeout=arguments.timeout,
        show=max(0, arguments.show),
        json_file=arguments.json,
    )
