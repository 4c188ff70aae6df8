"""`plumbline check` and `plumbline list`.

Exit status: 0 conforming, 1 violations (or something was refused that no server may refuse), 2 could not run, or no
check could come to a verdict, 3 the suite itself failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.case import CHECKS, SCENARIOS, Target
from plumbline_conformance.contract import rules
from plumbline_conformance.judge import Finding, Verdict, judge, record

__all__ = ["add_commands", "check", "main", "run_command"]

_MARKS: dict[Verdict, str] = {
    "pass": "green",
    "fail": "bold red",
    "warn": "yellow",
    "rejected": "blue",
    "untestable": "red",
    "inconclusive": "cyan",
    "skipped": "bright_black",
    "error": "magenta",
}


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
    checker.add_argument("--concurrency", type=_positive(int), default=4)
    checker.add_argument("--timeout", type=_positive(float), default=60.0, metavar="SECONDS")
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
    console = Console(highlight=False, soft_wrap=True)
    for unknown in [i for i in ids if not any(check.startswith(i) for check in CHECKS)]:
        console.print(f"No check begins with {_shown(unknown)}. `plumbline list` shows them all.")
        return 2
    wanted = {name for name in CHECKS if not ids or any(name.startswith(i) for i in ids)}
    scenarios = [
        found for found in SCENARIOS.values() if any(name.startswith(f"{found.id}/") for name in wanted)
    ]
    try:
        transcripts = asyncio.run(record(scenarios, target, concurrency=concurrency, patience=timeout))
    except UnicodeEncodeError:
        console.print("The API key cannot be sent: it is not ASCII.")
        return 2
    exchanges = [exchange for transcript in transcripts for exchange in transcript.exchanges]
    if all(exchange.status == 0 for exchange in exchanges):
        console.print(f"{_shown(target.base_url)} cannot be reached: {_shown(exchanges[0].error or '')}")
        return 2
    findings = [finding for seen in transcripts for finding in judge(seen) if finding.check in wanted]
    for finding in findings:
        _show(console, finding)
    counts = Counter(finding.verdict for finding in findings)
    summary = ", ".join(f"{counts[name]} {name}" for name in _MARKS if counts[name])
    console.print(f"{len(findings)} checks: {summary}")
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(msgspec.to_builtins(findings), indent=1), "utf-8")
        except OSError as error:
            console.print(f"The findings cannot be written: {_shown(str(error))}")
            return 2
    return _status(findings, strict=strict)


def _status(findings: Sequence[Finding], *, strict: bool) -> int:
    verdicts = {finding.verdict for finding in findings}
    core = {finding.verdict for finding in findings if SCENARIOS[finding.check.rsplit("/", 1)[0]].core}
    if "error" in verdicts:
        return 3
    untestable = {CHECKS[finding.check].level for finding in findings if finding.verdict == "untestable"}
    if "fail" in verdicts or "MUST" in untestable or "rejected" in core or (strict and "warn" in verdicts):
        return 1
    return 2 if verdicts <= {"inconclusive", "skipped"} else 0


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise ValueError(text)
        return value

    read.__name__ = f"positive {kind.__name__}"
    return read


def _shown(text: str) -> str:
    """What a server wrote, fit for a terminal: no markup, no control characters, no halves of characters."""
    return escape("".join(char if char.isprintable() else ascii(char)[1:-1] for char in text))


def _show(console: Console, finding: Finding) -> None:
    """h2spec's shape: the rule's sentence, what was expected, what was there, how to see it again."""
    if finding.verdict == "pass":
        return
    found = CHECKS[finding.check]
    style = _MARKS[finding.verdict]
    console.print(f"[{style}]{finding.verdict}[/] {finding.check}  {escape(found.title)}")
    if finding.reason:
        console.print(f"    {_shown(finding.reason)}")
    for rule in found.rules if finding.problems else ():
        console.print(f"    {rule}: {escape(rules()[rule]['sentence'])}")
    for problem in finding.problems[:3]:
        where = f"  ({_shown(problem.pointer)})" if problem.pointer else ""
        console.print(f"    expected {_shown(problem.expected)}")
        console.print(f"    actual   {_shown(problem.actual)}{where}")
    if len(finding.problems) > 3:
        console.print(f"    and {len(finding.problems) - 3} more of this kind")


def main(argv: Sequence[str] | None = None) -> int:
    """The judge by itself, without the server's commands."""
    parser = argparse.ArgumentParser(prog="plumbline", description=__doc__)
    add_commands(parser.add_subparsers(dest="command", required=True, metavar="COMMAND"))
    return run_command(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
