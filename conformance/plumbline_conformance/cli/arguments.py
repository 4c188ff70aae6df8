"""Define the options of the judge's commands."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.bench.dialects import APIS
from plumbline_conformance.cli.client import CLIENT_STATUSES, add_client
from plumbline_conformance.cli.options import (
    Parser,
    add_clients,
    add_concurrency,
    add_outputs,
    add_selection,
    add_target,
    add_timeout,
    positive,
    reachable,
    seconds,
    seed,
)
from plumbline_conformance.cli.vectors import add_vectors
from plumbline_conformance.cli.verify import VERIFY_STATUSES, add_verify
from plumbline_conformance.console.commands import COMMANDS
from plumbline_conformance.recording.file import RESTART_WAIT, TIMEOUT, TRIALS
from plumbline_conformance.suite.model import SEED

__all__ = ["add_commands"]

_STATUSES = (
    "exit status: 0 the server conforms; 1 it broke a MUST (with --strict, a SHOULD), or the baseline names what it no "
    "longer breaks; 2 nothing could be judged; 3 a defect of the judge; 130 interrupted. "
)


def add_commands(parsers: argparse._SubParsersAction[Parser]) -> None:
    """Add the judge's commands to a parser."""
    _add_check(_command(parsers, "check", _STATUSES))
    lister = _command(parsers, "list")
    add_selection(lister)
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
    rejudger = _command(parsers, "judge", _STATUSES)
    rejudger.add_argument("recording", type=Path, metavar="RUN.JSONL", help="a recording of `check --record`")
    add_selection(rejudger)
    rejudger.add_argument(
        "--submission",
        action="store_true",
        help="say instead what is missing before the recording can be a row of the table of servers",
    )
    add_clients(rejudger)
    add_outputs(rejudger)
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
        "--examples", type=positive(int), default=40, metavar="N", help="generated requests (default 40)"
    )
    differ.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the requests (default 0)")
    differ.add_argument(
        "--tolerance",
        type=positive(float),
        default=0.05,
        metavar="X",
        help="accepted difference between logprobs, in nats (default 0.05)",
    )
    add_timeout(differ, 60.0)
    differ.add_argument("--json", type=Path, metavar="FILE", help="write the differences")
    exact = _command(parsers, "exact")
    exact.add_argument(
        "scripts", type=Path, metavar="SCRIPTS", help="scripts.json, or the folder of the checkpoint"
    )
    add_target(exact)
    add_concurrency(exact)
    add_timeout(exact, 60.0)
    exact.add_argument("--json", type=Path, metavar="FILE", help="write the differences")
    add_verify(_command(parsers, "verify", VERIFY_STATUSES))
    add_client(_command(parsers, "client", CLIENT_STATUSES))
    fuzzer = _command(parsers, "fuzz")
    fuzzer.add_argument(
        "operations",
        nargs="*",
        metavar="OPERATION",
        help="operation ids such as createResponse (default: all)",
    )
    add_target(fuzzer)
    fuzzer.add_argument(
        "--examples", type=positive(int), default=600, metavar="N", help="requests in total (default 600)"
    )
    fuzzer.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the requests (default 0)")
    add_timeout(fuzzer, 30.0)
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
    add_vectors(_command(parsers, "vectors"))
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
        type=positive(int),
        default=512,
        metavar="N",
        help="concurrent connections (default 512)",
    )
    add_outputs(watcher)


def _add_check(parser: Parser) -> None:
    parser.usage = "plumbline check URL [OPTIONS] [ID ...]"
    server = parser.add_argument_group("server")
    add_target(server, required=False)
    server.add_argument(
        "--capabilities",
        default="",
        metavar="NAMES",
        help="capabilities that the server has, or with a minus lacks, instead of probing: tools,stored,-key",
    )
    server.add_argument(
        "--mcp",
        type=reachable,
        metavar="HOST:PORT",
        help="where to run an MCP server that the server may call, for its scenarios (default: skip them)",
    )
    add_selection(parser)
    limits = parser.add_argument_group("requests and limits")
    add_concurrency(limits)
    add_timeout(limits, TIMEOUT)
    limits.add_argument(
        "--trials",
        type=int,
        default=TRIALS,
        metavar="N",
        help=f"repetitions of a scenario that broke a MUST (default {TRIALS})",
    )
    limits.add_argument(
        "--seed",
        type=seed,
        default=SEED,
        metavar="N",
        help=f"seed of requests that send one (default {SEED})",
    )
    for name, scope in (("total", "the run"), ("each", "one scenario")):
        limits.add_argument(
            f"--max-tokens-{name}",
            type=positive(int),
            metavar="N",
            help=f"skip scenarios if {scope} could cost more tokens than this (default: no limit)",
        )
    limits.add_argument(
        "--max-seconds",
        type=positive(float),
        metavar="SECONDS",
        help="end all requests after this time and report what was judged (default: no limit)",
    )
    limits.add_argument(
        "--restart-wait",
        type=seconds,
        default=RESTART_WAIT,
        metavar="SECONDS",
        help=f"how long to wait for a server that died to return (default {RESTART_WAIT:g})",
    )
    reports = add_outputs(parser)
    add_clients(reports)
    reports.add_argument(
        "--record", type=Path, metavar="FILE", help="write a recording: every byte with its time"
    )
    reports.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="go on with a recording of an interrupted run: what had ended in it is not sent again",
    )
    reports.add_argument(
        "--server", default="", metavar="TEXT", help="name and version of the server, for reports"
    )
    reports.add_argument(
        "--conceal",
        action="append",
        default=[],
        metavar="TEXT",
        help="another text to redact in everything that is written, such as a path; repeatable",
    )


def _add_bench(parser: Parser) -> None:
    servers = parser.add_argument_group("servers")
    servers.add_argument(
        "urls", nargs="+", metavar="URL", help="base URL of a server, or of two to compare in turn"
    )
    servers.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="model name, once or for each server (default: the first that the server lists)",
    )
    servers.add_argument(
        "--api-key",
        default=os.environ.get("OPENAI_API_KEY"),
        metavar="KEY",
        help="API key of all servers (default: the variable OPENAI_API_KEY)",
    )
    servers.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="a further header"
    )
    servers.add_argument("--api", choices=tuple(APIS), default="chat", help="API to measure (default chat)")
    load = parser.add_argument_group("load")
    loads = load.add_mutually_exclusive_group()
    loads.add_argument(
        "--concurrency",
        type=positive(int),
        nargs="+",
        default=[1, 8, 32],
        metavar="N",
        help="requests at a time (default 1 8 32)",
    )
    loads.add_argument(
        "--rate",
        type=positive(float),
        nargs="+",
        metavar="N",
        help="requests per second instead, at random times",
    )
    load.add_argument(
        "--requests",
        type=positive(int),
        default=0,
        metavar="N",
        help="requests of each load and round (default: four times the load, at least 16)",
    )
    load.add_argument(
        "--rounds",
        type=positive(int),
        metavar="N",
        help="repetitions of each load (default 1; 3 for two servers)",
    )
    requests = parser.add_argument_group("requests")
    given = requests.add_mutually_exclusive_group()
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
    requests.add_argument(
        "--output-tokens", default="64", metavar="N[-M]", help="most tokens of an answer (default 64)"
    )
    requests.add_argument(
        "--body",
        default="{}",
        metavar="JSON",
        help="further fields of every request, such as '{\"ignore_eos\": true}' for answers of full length",
    )
    requests.add_argument(
        "--seed", type=seed, default=SEED, metavar="N", help=f"seed of prompts (default {SEED})"
    )
    add_timeout(requests, 600.0)
    reports = parser.add_argument_group("reports")
    reports.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count the requests within bounds: ttft:500 (first token), tpot:50 (each other), e2el:5000 (answer)",
    )
    reports.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    reports.add_argument("--html", type=Path, metavar="FILE", help="write plots as one self-contained page")


def _command(parsers: argparse._SubParsersAction[Parser], name: str, statuses: str = "") -> Parser:
    """Add a command, with its exit statuses and an example below its options."""
    purpose, example = COMMANDS[name]
    description = f"{purpose[0].upper()}{purpose[1:]}."
    return parsers.add_parser(
        name, help=purpose, description=description, epilog=f"{statuses}example: {example}"
    )
