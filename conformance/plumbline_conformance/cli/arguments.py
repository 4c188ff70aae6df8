"""Define the options of the judge's commands."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.bench.dialects import APIS
from plumbline_conformance.console.commands import COMMANDS
from plumbline_conformance.recording.file import RESTART_WAIT, TIMEOUT, TRIALS
from plumbline_conformance.suite.client_claims import CLIENTS
from plumbline_conformance.suite.coverage import revisions
from plumbline_conformance.suite.model import SEED
from plumbline_conformance.suite.selection import PROFILES

__all__ = ["add_commands"]

Parser = argparse.ArgumentParser


def add_commands(parsers: argparse._SubParsersAction[Parser]) -> None:
    """Add the judge's commands to a parser."""
    checker = _command(parsers, "check")
    _add_selection(checker)
    _add_target(checker)
    _add_concurrency(checker)
    _add_timeout(checker, TIMEOUT)
    checker.add_argument(
        "--trials",
        type=int,
        default=TRIALS,
        metavar="N",
        help=f"repetitions of a scenario that broke a MUST (default {TRIALS})",
    )
    for name, scope in (("total", "the run"), ("each", "one scenario")):
        checker.add_argument(
            f"--max-tokens-{name}",
            type=_positive(int),
            metavar="N",
            help=f"skip scenarios if {scope} could cost more tokens than this (default: no limit)",
        )
    checker.add_argument(
        "--max-seconds",
        type=_positive(float),
        metavar="SECONDS",
        help="end all requests after this time and report what was judged (default: no limit)",
    )
    checker.add_argument(
        "--restart-wait",
        type=_seconds,
        default=RESTART_WAIT,
        metavar="SECONDS",
        help=f"how long to wait for a server that died to return (default {RESTART_WAIT:g})",
    )
    checker.add_argument(
        "--capabilities",
        default="",
        metavar="NAMES",
        help="capabilities that the server has, or with a minus lacks, instead of probing: tools,stored,-key",
    )
    checker.add_argument(
        "--record", type=Path, metavar="FILE", help="write a recording: every byte with its time"
    )
    checker.add_argument(
        "--seed",
        type=_seed,
        default=SEED,
        metavar="N",
        help=f"seed of requests that send one (default {SEED})",
    )
    checker.add_argument(
        "--conceal",
        action="append",
        default=[],
        metavar="TEXT",
        help="another text to redact in everything that is written, such as a path; repeatable",
    )
    checker.add_argument(
        "--server", default="", metavar="TEXT", help="name and version of the server, for reports"
    )
    _add_clients(checker)
    _add_outputs(checker)
    lister = _command(parsers, "list")
    _add_selection(lister)
    lister.add_argument(
        "--rules", action="store_true", help="list every rule with its checks, or the reason why it has none"
    )
    lister.add_argument(
        "--clauses",
        action="store_true",
        help="with --rules: list the clauses of each rule with their checks as well",
    )
    lister.add_argument("--markdown", action="store_true", help="with --rules: write Markdown")
    explainer = _command(parsers, "explain")
    explainer.add_argument(
        "names", nargs="+", metavar="ID", help="id of a check, scenario or rule, a prefix or a pattern"
    )
    rejudger = _command(parsers, "judge")
    rejudger.add_argument("recording", type=Path, metavar="RUN.JSONL", help="a recording of `check --record`")
    _add_selection(rejudger)
    _add_clients(rejudger)
    _add_outputs(rejudger)
    exporter = _command(parsers, "export")
    exporter.add_argument("recording", type=Path, metavar="RUN.JSONL", help="a recording of `check --record`")
    exporter.add_argument(
        "--har", type=Path, metavar="FILE", help="write HAR 1.2 to FILE (default: standard output)"
    )
    matrix = _command(parsers, "matrix")
    matrix.add_argument(
        "reports",
        nargs="+",
        metavar="[NAME=]FILE",
        help="JSON reports or recordings, with names for the columns",
    )
    matrix.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write Markdown (default: print it if there is no --html)",
    )
    matrix.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained HTML page")
    differ = _command(parsers, "diff")
    differ.add_argument("urls", nargs=2, metavar="URL", help="base URLs of server A and server B")
    differ.add_argument("--model-a", required=True, metavar="NAME", help="model name on server A")
    differ.add_argument("--model-b", metavar="NAME", help="model name on server B (default: as on A)")
    differ.add_argument(
        "--api-key-a",
        default=os.environ.get("OPENAI_API_KEY"),
        metavar="KEY",
        help="API key of server A (default: OPENAI_API_KEY)",
    )
    differ.add_argument("--api-key-b", metavar="KEY", help="API key of server B (default: none)")
    differ.add_argument(
        "--examples", type=_positive(int), default=40, metavar="N", help="generated requests (default 40)"
    )
    differ.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the requests (default 0)")
    differ.add_argument(
        "--tolerance",
        type=_positive(float),
        default=0.05,
        metavar="X",
        help="accepted difference between logprobs, in nats (default 0.05)",
    )
    _add_timeout(differ, 60.0)
    differ.add_argument("--json", type=Path, metavar="FILE", help="write the differences")
    exact = _command(parsers, "exact")
    exact.add_argument(
        "scripts", type=Path, metavar="SCRIPTS", help="scripts.json, or the folder of the checkpoint"
    )
    _add_target(exact)
    _add_concurrency(exact)
    _add_timeout(exact, 60.0)
    exact.add_argument("--json", type=Path, metavar="FILE", help="write the differences")
    fuzzer = _command(parsers, "fuzz")
    fuzzer.add_argument(
        "operations",
        nargs="*",
        metavar="OPERATION",
        help="operation ids such as createResponse (default: all)",
    )
    _add_target(fuzzer)
    fuzzer.add_argument(
        "--examples", type=_positive(int), default=600, metavar="N", help="requests in total (default 600)"
    )
    fuzzer.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the requests (default 0)")
    _add_timeout(fuzzer, 30.0)
    fuzzer.add_argument("--json", type=Path, metavar="FILE", help="write the counterexamples")
    fuzzer.add_argument(
        "--schemathesis", action="store_true", help="run schemathesis afterwards, with as many examples"
    )
    fuzzer.add_argument(
        "--phases",
        default="examples,coverage,fuzzing,stateful",
        metavar="NAMES",
        help="phases of schemathesis (default: all; `coverage` sends thousands of requests)",
    )
    _add_bench(_command(parsers, "bench"))
    watcher = _command(parsers, "watch")
    watcher.add_argument(
        "--upstream", required=True, metavar="URL", help="the server, such as http://127.0.0.1:8000"
    )
    watcher.add_argument(
        "--listen",
        default=":9000",
        metavar="[HOST]:PORT",
        help="address of the proxy (default :9000; without a host, loopback)",
    )
    watcher.add_argument(
        "--record", type=Path, metavar="FILE", help="write a recording: every byte with its time"
    )
    watcher.add_argument(
        "--connections",
        type=_positive(int),
        default=512,
        metavar="N",
        help="concurrent connections (default 512)",
    )
    _add_outputs(watcher)


def _add_bench(parser: Parser) -> None:
    parser.add_argument(
        "urls", nargs="+", metavar="URL", help="base URL of a server, or of two to compare in turn"
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="model name, once or for each server (default: the first that the server lists)",
    )
    parser.add_argument(
        "--api-key",
        default=os.environ.get("OPENAI_API_KEY"),
        metavar="KEY",
        help="API key of all servers (default: the variable OPENAI_API_KEY)",
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="a further header"
    )
    parser.add_argument("--api", choices=tuple(APIS), default="chat", help="API to measure (default chat)")
    loads = parser.add_mutually_exclusive_group()
    loads.add_argument(
        "--concurrency",
        type=_positive(int),
        nargs="+",
        default=[1, 8, 32],
        metavar="N",
        help="requests at a time (default 1 8 32)",
    )
    loads.add_argument(
        "--rate",
        type=_positive(float),
        nargs="+",
        metavar="N",
        help="requests per second instead, at random times",
    )
    parser.add_argument(
        "--requests",
        type=_positive(int),
        default=0,
        metavar="N",
        help="requests of each load and round (default: four times the load, at least 16)",
    )
    parser.add_argument(
        "--rounds",
        type=_positive(int),
        metavar="N",
        help="repetitions of each load (default 1; 3 for two servers)",
    )
    given = parser.add_mutually_exclusive_group()
    given.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts, one a line: a text, or JSON with prompt or messages",
    )
    given.add_argument(
        "--prompt-words",
        default="60",
        metavar="N[-M]",
        help="random words of a prompt, no two alike (default 60)",
    )
    parser.add_argument(
        "--output-tokens", default="64", metavar="N[-M]", help="most tokens of an answer (default 64)"
    )
    parser.add_argument(
        "--body",
        default="{}",
        metavar="JSON",
        help="further fields of every request, such as '{\"ignore_eos\": true}' for answers of full length",
    )
    parser.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count the requests within bounds: ttft:500 (first token), tpot:50 (each other), e2el:5000 (answer)",
    )
    parser.add_argument(
        "--seed", type=_seed, default=SEED, metavar="N", help=f"seed of prompts (default {SEED})"
    )
    _add_timeout(parser, 600.0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write plots as one self-contained page")


def _command(parsers: argparse._SubParsersAction[Parser], name: str) -> Parser:
    """Add a command with an example below its options."""
    purpose, example = COMMANDS[name]
    description = f"{purpose[0].upper()}{purpose[1:]}."
    return parsers.add_parser(name, help=purpose, description=description, epilog=f"example: {example}")


def _add_target(parser: Parser) -> None:
    parser.add_argument(
        "--base-url", required=True, metavar="URL", help="root of the API, such as http://127.0.0.1:8000/v1"
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="model name to request")
    parser.add_argument(
        "--api-key",
        default=os.environ.get("OPENAI_API_KEY"),
        metavar="KEY",
        help="API key (default: the variable OPENAI_API_KEY)",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a further header of every request, such as one that a gateway needs; repeatable",
    )


def _add_concurrency(parser: Parser) -> None:
    parser.add_argument(
        "--concurrency", type=_positive(int), default=4, metavar="N", help="concurrent requests (default 4)"
    )


def _add_timeout(parser: Parser, default: float) -> None:
    parser.add_argument(
        "--timeout",
        type=_positive(float),
        default=default,
        metavar="SECONDS",
        help=f"time limit of one request (default {default:g})",
    )


def _add_selection(parser: Parser) -> None:
    parser.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="ids of checks or rules, prefixes, or patterns such as '*/usage' (default: all)",
    )
    parser.add_argument(
        "--profile", choices=tuple(PROFILES), default="full", help="set of checks (default full)"
    )
    parser.add_argument(
        "--level",
        choices=("must", "should", "may"),
        default="may",
        help="lowest level to include (default may)",
    )
    parser.add_argument(
        "--surface",
        "--only-surface",
        action="append",
        default=[],
        metavar="NAME",
        help="only this part of the API, such as chat; repeatable",
    )
    parser.add_argument(
        "--requirements", choices=revisions(), help="only the checks of this published revision"
    )


def _add_clients(parser: Parser) -> None:
    parser.add_argument(
        "--sdk",
        default="",
        metavar="CLIENTS",
        help=f"let these official clients read the recorded answers as well: {', '.join(CLIENTS)}",
    )


def _add_outputs(parser: Parser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 for broken SHOULD rules as well")
    for name, content in (
        ("json", "the report as JSON"),
        ("junit", "the report as JUnit XML"),
        ("markdown", "the report as Markdown"),
        ("html", "the report as one self-contained page"),
        ("badge", "a badge: SVG if the name ends in .svg, else JSON for shields.io"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {content}")
    parser.add_argument(
        "--baseline", "--expected-failures", type=Path, metavar="FILE", help="file of known violations"
    )
    parser.add_argument(
        "--update-baseline", action="store_true", help="write the current violations to the baseline"
    )


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise ValueError(text)
        return value

    read.__name__ = f"positive {kind.__name__}"
    return read


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not a 64-bit integer")
    return value
