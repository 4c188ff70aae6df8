"""Read the options of `plumbline client`."""

from __future__ import annotations

import argparse

from plumbline_conformance.client.target_input import UnusableInput
from plumbline_conformance.console.terminal import console
from plumbline_conformance.variations.cases import CASES
from plumbline_conformance.variations.run import Plan, chosen, run_client

__all__ = ["client"]


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
