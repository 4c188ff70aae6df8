"""`plumbline check` and `plumbline list`.

Exit status: 0 conforming, 1 violations, 2 could not run, 3 the suite itself failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.case import CHECKS, SCENARIOS, Scenario, Target
from plumbline_conformance.judge import Finding, judge, record
from plumbline_conformance.schema import rules

__all__ = ["add_commands", "check", "main", "run_command"]

_MARKS = {"pass": "green", "fail": "bold red", "warn": "yellow", "inconclusive": "cyan", "error": "magenta"}


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the judge's commands to a parser."""
    checker = commands.add_parser("check", help="judge a server")
    checker.add_argument(
        "ids", nargs="*", metavar="ID", help="scenarios or checks, or their beginnings; default: all"
    )
    checker.add_argument("--base-url", required=True, metavar="URL", help="such as http://127.0.0.1:8000/v1")
    checker.add_argument("--model", required=True)
    checker.add_argument(
        "--api-key", default=os.environ.get("OPENAI_API_KEY"), help="default: OPENAI_API_KEY"
    )
    checker.add_argument("--concurrency", type=int, default=4)
    checker.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    checker.add_argument("--strict", action="store_true", help="SHOULD counts as well")
    checker.add_argument("--json", type=Path, metavar="FILE", help="write the findings")
    commands.add_parser("list", help="list the checks and the rules that they observe")


def run_command(arguments: argparse.Namespace) -> int:
    """Run what was parsed."""
    if arguments.command == "list":
        for found in CHECKS.values():
            print(f"{found.id:42} {found.level:6} {', '.join(found.rules):18} {found.title}")
        return 0
    target = Target(base_url=arguments.base_url, model=arguments.model, api_key=arguments.api_key)
    return check(
        target,
        arguments.ids,
        concurrency=arguments.concurrency,
        timeout=arguments.timeout,
        strict=arguments.strict,
        json_file=arguments.json,
    )


def check(
    target: Target,
    ids: Sequence[str] = (),
    *,
    concurrency: int = 4,
    timeout: float = 60.0,
    strict: bool = False,
    json_file: Path | None = None,
) -> int:
    """Judge a target, print what is not green, return the exit status."""
    console = Console(highlight=False)
    wanted = _select(ids)
    if not wanted:
        console.print(f"No scenario or check begins with {', '.join(ids)}. `plumbline list` shows them.")
        return 2
    transcripts = asyncio.run(record(wanted, target, concurrency=concurrency, patience=timeout))
    if all(exchange.status == 0 for transcript in transcripts for exchange in transcript.exchanges):
        console.print(f"{target.base_url} cannot be reached: {transcripts[0].last.error}")
        return 2
    findings = [
        finding
        for transcript in transcripts
        for finding in judge(transcript)
        if not ids or any(finding.check.startswith(i) or i.startswith(transcript.scenario) for i in ids)
    ]
    for finding in findings:
        _show(console, finding)
    counts = {name: sum(finding.verdict == name for finding in findings) for name in _MARKS}
    console.print(", ".join(f"{count} {name}" for name, count in counts.items() if count))
    if json_file is not None:
        json_file.write_bytes(json.dumps(msgspec.to_builtins(findings), indent=1).encode())
    if counts["error"]:
        return 3
    return 1 if counts["fail"] or (strict and counts["warn"]) else 0


def _select(ids: Sequence[str]) -> list[Scenario]:
    if not ids:
        return list(SCENARIOS.values())
    return [
        found
        for found in SCENARIOS.values()
        if any(found.id.startswith(i) or i.startswith(found.id) for i in ids)
    ]


def _show(console: Console, finding: Finding) -> None:
    """h2spec's shape: the rule's sentence, what was expected, what was there, how to see it again."""
    if finding.verdict == "pass":
        return
    found = CHECKS[finding.check]
    style = _MARKS[finding.verdict]
    console.print(f"[{style}]{finding.verdict}[/] {finding.check}  {escape(found.title)}")
    if finding.reason:
        console.print(f"    {escape(finding.reason)}")
    for rule in found.rules if finding.problems else ():
        console.print(f"    {rule}: {escape(rules()[rule]['sentence'])}")
    for problem in finding.problems[:3]:
        console.print(f"    expected {escape(problem.expected)}")
        console.print(
            f"    actual   {escape(problem.actual)}"
            + (f"  ({escape(problem.pointer)})" if problem.pointer else "")
        )
    if len(finding.problems) > 3:
        console.print(f"    and {len(finding.problems) - 3} more of this kind")


def main(argv: Sequence[str] | None = None) -> int:
    """The judge by itself, without the server's commands."""
    parser = argparse.ArgumentParser(prog="plumbline", description=__doc__)
    add_commands(parser.add_subparsers(dest="command", required=True, metavar="COMMAND"))
    return run_command(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
