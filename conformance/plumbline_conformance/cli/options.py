"""Define options that several of the judge's commands have."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

from plumbline_conformance.suite.client_claims import CLIENTS
from plumbline_conformance.suite.coverage import revisions
from plumbline_conformance.suite.selection import PROFILES

__all__ = [
    "add_clients",
    "add_concurrency",
    "add_outputs",
    "add_selection",
    "add_target",
    "add_timeout",
    "address",
    "positive",
    "reachable",
    "seconds",
    "seed",
]

Parser = argparse.ArgumentParser
Options = argparse._ActionsContainer
"""A parser, or a group of its options."""


def add_target(options: Options, *, required: bool = True) -> None:
    """Add which server and which of its models are asked, and how it is reached.

    Args:
        options: where to add them.
        required: whether the URL has to be an option; otherwise `ids` may begin with it.
    """
    options.add_argument(
        "--base-url",
        required=required,
        metavar="URL",
        help="root of the API, such as http://127.0.0.1:8000/v1",
    )
    options.add_argument(
        "--model",
        default="",
        metavar="NAME",
        help="model name to request (default: the first that the server lists)",
    )
    options.add_argument(
        "--api-key",
        default=os.environ.get("OPENAI_API_KEY"),
        metavar="KEY",
        help="API key (default: the variable OPENAI_API_KEY)",
    )
    options.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a further header of every request, such as one that a gateway needs; repeatable",
    )


def add_concurrency(options: Options) -> None:
    """Add the number of concurrent requests."""
    options.add_argument(
        "--concurrency", type=positive(int), default=4, metavar="N", help="concurrent requests (default 4)"
    )


def add_timeout(options: Options, default: float) -> None:
    """Add the time limit of one request, with its default in seconds."""
    options.add_argument(
        "--timeout",
        type=positive(float),
        default=default,
        metavar="SECONDS",
        help=f"time limit of one request (default {default:g})",
    )


def add_selection(parser: Parser) -> None:
    """Add the group of what is chosen of the suite."""
    options = parser.add_argument_group("selection")
    options.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="ids of checks or rules, prefixes, or patterns such as '*/usage' (default: all)",
    )
    options.add_argument(
        "--profile", choices=tuple(PROFILES), default="full", help="set of checks (default full)"
    )
    options.add_argument(
        "--level",
        choices=("must", "should", "may"),
        default="may",
        help="lowest level to include (default may)",
    )
    options.add_argument(
        "--surface",
        "--only-surface",
        action="append",
        default=[],
        metavar="NAME",
        help="only this part of the API, such as chat; repeatable",
    )
    options.add_argument(
        "--requirements", choices=revisions(), help="only the checks of this published revision"
    )


def add_clients(options: Options) -> None:
    """Add the official clients that read the recorded answers."""
    options.add_argument(
        "--sdk",
        default="",
        metavar="CLIENTS",
        help=f"let these official clients read the recorded answers as well: {', '.join(CLIENTS)}",
    )


def add_outputs(parser: Parser) -> Options:
    """Add what a run of checks writes, and return the group."""
    options = parser.add_argument_group("reports")
    options.add_argument("--strict", action="store_true", help="exit with 1 for broken SHOULD rules as well")
    for name, content in (
        ("json", "the report as JSON"),
        ("junit", "the report as JUnit XML"),
        ("markdown", "the report as Markdown"),
        ("html", "the report as one self-contained page"),
        ("badge", "a badge: SVG if the name ends in .svg, else JSON for shields.io"),
    ):
        options.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {content}")
    options.add_argument(
        "--baseline", "--expected-failures", type=Path, metavar="FILE", help="file of known violations"
    )
    options.add_argument(
        "--update-baseline", action="store_true", help="write the current violations to the baseline"
    )
    return options


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return a reader of numbers above zero; it raises ValueError for others."""

    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise ValueError(text)
        return value

    read.__name__ = f"positive {kind.__name__}"
    return read


def seconds(text: str) -> float:
    """Return a number of seconds from zero up; raises ArgumentTypeError for anything else."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def address(text: str) -> str:
    """Return a host and a port; raises ArgumentTypeError for anything else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not HOST:PORT, such as 127.0.0.1:8765")
    return text


def reachable(text: str) -> str:
    """Return a host and a port that another process can connect to; raises ArgumentTypeError for anything else."""
    host = address(text).rpartition(":")[0].strip("[]")
    if host in ("0.0.0.0", "::", "*"):  # noqa: S104 - to refuse it
        raise argparse.ArgumentTypeError(
            f"{host} is every address of this machine: name the one at which the judged server reaches the judge, "
            "such as 127.0.0.1:8765"
        )
    return text


def seed(text: str) -> int:
    """Return a signed 64-bit integer; raises ValueError or ArgumentTypeError for anything else."""
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not a 64-bit integer")
    return value
