"""Read the options of `plumbline client`."""

from __future__ import annotations

import argparse
from pathlib import Path

from plumbline_conformance.cli.options import Parser, add_timeout, positive
from plumbline_conformance.client.target_input import UnusableInput
from plumbline_conformance.console.output_files import why_unwritable
from plumbline_conformance.console.terminal import console
from plumbline_conformance.variations.cases import CASES
from plumbline_conformance.variations.run import Plan, chosen, run_client

__all__ = ["CLIENT_STATUSES", "add_client", "client"]

CLIENT_STATUSES = (
    "exit status: 0 no case breaks the client; 1 some do; 2 the program fails without a variation, or asks for "
    "nothing. "
)


def add_client(parser: Parser) -> None:
    """Add the options."""
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="the program and its arguments: it asks OPENAI_BASE_URL, and exits with an error if what it reads is not "
        "PLUMBLINE_EXPECTED; without one, only listen",
    )
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="only this case; repeatable"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="run the program once: it takes the cases from PLUMBLINE_CASES, and posts each outcome",
    )
    parser.add_argument(
        "--jobs", type=positive(int), default=2, metavar="N", help="programs at a time (default 2)"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port (default: a free one)")
    add_timeout(parser, 60.0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes")


def client(arguments: argparse.Namespace) -> int:
    """List the cases, or run a program for them; return the exit status."""
    out = console()
    if arguments.list:
        for case in CASES:
            out.print(
                f"{case.slug:50} {case.name} ({case.allowed_by})",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
        return 0
    try:
        cases = chosen(arguments.case)
    except LookupError as error:
        raise UnusableInput(f"--case: {error.args[0]}") from None
    if reason := why_unwritable({"--json": arguments.json}, {}):
        raise UnusableInput(reason)
    # `--` may stand before the program.
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    plan = Plan(
        command=program,
        cases=cases,
        once=arguments.once,
        jobs=int(arguments.jobs),
        timeout=arguments.timeout,
        port=arguments.port,
    )
    return run_client(plan, out, arguments.json)
