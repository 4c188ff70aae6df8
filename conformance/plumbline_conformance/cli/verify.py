"""Read the options of `plumbline verify`."""

from __future__ import annotations

import argparse
from pathlib import Path

from plumbline_conformance.cli.common import fields_of
from plumbline_conformance.cli.options import Parser, add_concurrency, add_target, add_timeout, positive
from plumbline_conformance.client.target_input import UnusableInput
from plumbline_conformance.console.output_files import why_unwritable
from plumbline_conformance.verify.run import Plan

__all__ = ["VERIFY_STATUSES", "add_verify", "plan_of"]

VERIFY_STATUSES = (
    "exit status: 0 no figure is worse than the baseline's; 1 one is, or the temperature is ignored; 2 there are no "
    "answers. "
)


def add_verify(parser: Parser) -> None:
    """Add the options."""
    rows = parser.add_argument_group("rows")
    rows.add_argument(
        "samples",
        type=Path,
        metavar="SAMPLES.JSONL",
        help="requests: bodies of chat completions, one a line, as K2-Vendor-Verifier has them",
    )
    rows.add_argument(
        "--baseline",
        type=Path,
        action="append",
        default=[],
        metavar="RESULTS.JSONL",
        help="results of the server to compare with, in its format; repeatable, for several runs",
    )
    rows.add_argument(
        "--row",
        type=positive(int),
        action="append",
        default=[],
        metavar="N",
        help="only this line; repeatable",
    )
    rows.add_argument(
        "--repeats",
        type=positive(int),
        default=3,
        metavar="N",
        help="answers to each row (default 3; with one, only the number of calls can be tested)",
    )
    rows.add_argument(
        "--body",
        default="{}",
        metavar="JSON",
        help="further fields of every request, such as '{\"temperature\": 0.6}'",
    )
    server = parser.add_argument_group("server")
    add_target(server)
    add_concurrency(server)
    add_timeout(server, 600.0)
    for name, content in (("tool", "calls"), ("reasoning", "thinking")):
        server.add_argument(
            f"--{name}-parser",
            default="auto",
            metavar="NAME",
            help=f"the dialect of the model's {content}, to read raw texts (default: by the template that the server "
            "shows)",
        )
    reports = parser.add_argument_group("reports")
    reports.add_argument(
        "--results", type=Path, metavar="FILE", help="write the answers; the file can be a baseline later"
    )
    for name, content in (
        ("json", "what was found"),
        ("junit", "JUnit XML"),
        ("html", "one self-contained page"),
    ):
        reports.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {content}")


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return what is sent.

    Raises:
        UnusableInput: an option has a value that cannot be used.
    """
    files = {f"--{name}": getattr(arguments, name) for name in ("results", "json", "junit", "html")}
    read = {"SAMPLES": arguments.samples}
    if reason := why_unwritable(files, read):
        raise UnusableInput(reason)
    if arguments.results in arguments.baseline:
        raise UnusableInput("--results is a baseline: give another file, because it is written anew.")
    return Plan(
        samples=arguments.samples,
        baselines=arguments.baseline,
        numbers=frozenset(map(int, arguments.row)),
        repeats=int(arguments.repeats),
        body=fields_of(arguments.body),
        results=arguments.results,
        concurrency=int(arguments.concurrency),
        timeout=arguments.timeout,
        tool_parser=arguments.tool_parser,
        reasoning_parser=arguments.reasoning_parser,
    )
