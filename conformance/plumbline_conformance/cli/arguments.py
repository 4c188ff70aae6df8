"""The judge's commands: `check`, `list`, `explain`, `judge`, `export`, `matrix`, `diff`, `exact`, `fuzz` and `watch`.

Exit status: 0 conforming, 1 violations (or something was refused that no server may refuse, or a baseline is stale),
2 could not run, or no check could come to a verdict, 3 the suite itself failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli import commands
from plumbline_conformance.cli.live_check import run_check
from plumbline_conformance.cli.matrix import run_matrix
from plumbline_conformance.client.target_input import UnusableInput, capabilities_of, clients_of, target_of
from plumbline_conformance.console.output_files import why_unwritable
from plumbline_conformance.console.terminal import INTERRUPTED, console, parsed, ready
from plumbline_conformance.differential import run_diff
from plumbline_conformance.exact import run_exact
from plumbline_conformance.recording.file import TIMEOUT, TRIALS
from plumbline_conformance.reports.conclude import Outputs
from plumbline_conformance.reports.text import printable
from plumbline_conformance.runner.budget import Budget
from plumbline_conformance.suite.client_claims import CLIENTS
from plumbline_conformance.suite.coverage import revisions
from plumbline_conformance.suite.model import SEED, Target
from plumbline_conformance.suite.selection import PROFILES, Selection
from plumbline_conformance.watch import run_watch

__all__ = ["add_commands", "main", "parsed", "ready", "run_command"]

Parser = argparse.ArgumentParser


def add_commands(parsers: argparse._SubParsersAction[Parser]) -> None:
    """Add the judge's commands to a parser."""
    checker = parsers.add_parser("check", help="judge a server")
    _add_selection(checker)
    _add_target(checker)
    checker.add_argument("--concurrency", type=_positive(int), default=4)
    checker.add_argument("--timeout", type=_positive(float), default=TIMEOUT, metavar="SECONDS")
    checker.add_argument(
        "--trials",
        type=int,
        default=TRIALS,
        metavar="N",
        help=f"further attempts at a broken MUST; default: {TRIALS}",
    )
    for name, said in (("total", "the run"), ("each", "one scenario")):
        checker.add_argument(
            f"--max-tokens-{name}",
            type=_positive(int),
            metavar="N",
            help=f"what {said} may cost, at its worst",
        )
    checker.add_argument(
        "--max-seconds",
        type=_positive(float),
        metavar="SECONDS",
        help="begin no scenario after so long, and wait for no busy server",
    )
    checker.add_argument(
        "--capabilities",
        default="",
        metavar="NAMES",
        help="what the server has, and with a minus what it lacks, instead of looking: tools,stored,-key",
    )
    checker.add_argument("--record", type=Path, metavar="FILE", help="write every byte and its time")
    checker.add_argument(
        "--seed", type=_seed, default=SEED, metavar="N", help=f"of requests that send one; default: {SEED}"
    )
    checker.add_argument(
        "--conceal",
        action="append",
        default=[],
        metavar="TEXT",
        help="what else nobody may read in what is written, such as a path; repeatable",
    )
    checker.add_argument(
        "--server", default="", metavar="TEXT", help="what it is, for reports: a name and a version"
    )
    _add_clients(checker)
    _add_outputs(checker)
    lister = parsers.add_parser("list", help="list the checks and the rules that they observe")
    _add_selection(lister)
    lister.add_argument("--rules", action="store_true", help="every rule, and its checks or why it has none")
    lister.add_argument("--markdown", action="store_true", help="with --rules: as a page")
    explainer = parsers.add_parser("explain", help="say what a check, a scenario or a rule is about")
    explainer.add_argument("names", nargs="+", metavar="CHECK_OR_RULE")
    rejudger = parsers.add_parser("judge", help="judge a recording again, without a server")
    rejudger.add_argument("recording", type=Path, metavar="RUN.JSONL")
    _add_selection(rejudger)
    _add_clients(rejudger)
    _add_outputs(rejudger)
    exporter = parsers.add_parser("export", help="write a recording in a form that other tools read")
    exporter.add_argument("recording", type=Path, metavar="RUN.JSONL")
    exporter.add_argument("--har", type=Path, metavar="FILE", help="HAR 1.2; default: to standard output")
    matrix = parsers.add_parser("matrix", help="put several reports or recordings side by side")
    matrix.add_argument("reports", nargs="+", metavar="[NAME=]REPORT.JSON_OR_RUN.JSONL")
    matrix.add_argument("--markdown", type=Path, metavar="FILE")
    matrix.add_argument("--html", type=Path, metavar="FILE")
    differ = parsers.add_parser("diff", help="ask two servers with the same weights the same")
    differ.add_argument("urls", nargs=2, metavar="URL")
    differ.add_argument("--model-a", required=True, metavar="NAME")
    differ.add_argument("--model-b", metavar="NAME", help="default: the same name")
    differ.add_argument("--api-key-a", default=os.environ.get("OPENAI_API_KEY"), metavar="KEY")
    differ.add_argument("--api-key-b", metavar="KEY", help="default: none")
    differ.add_argument("--examples", type=_positive(int), default=40, metavar="N")
    differ.add_argument("--seed", type=int, default=0)
    differ.add_argument("--tolerance", type=_positive(float), default=0.05, help="of logprobs")
    differ.add_argument("--timeout", type=_positive(float), default=60.0, metavar="SECONDS")
    differ.add_argument("--json", type=Path, metavar="FILE", help="write the differences")
    exact = parsers.add_parser("exact", help="hold a server with a scripted checkpoint to its scripts")
    exact.add_argument("scripts", type=Path, metavar="SCRIPTS.JSON", help="or the checkpoint's folder")
    _add_target(exact)
    exact.add_argument("--concurrency", type=_positive(int), default=4)
    exact.add_argument("--timeout", type=_positive(float), default=60.0, metavar="SECONDS")
    exact.add_argument("--json", type=Path, metavar="FILE", help="write the differences")
    fuzzer = parsers.add_parser("fuzz", help="send requests that nobody would write")
    fuzzer.add_argument(
        "operations", nargs="*", metavar="OPERATION", help="such as createResponse; default: all"
    )
    _add_target(fuzzer)
    fuzzer.add_argument("--examples", type=_positive(int), default=600, metavar="N", help="in all")
    fuzzer.add_argument("--seed", type=int, default=0)
    fuzzer.add_argument("--timeout", type=_positive(float), default=30.0, metavar="SECONDS")
    fuzzer.add_argument("--json", type=Path, metavar="FILE", help="write the counterexamples")
    fuzzer.add_argument(
        "--schemathesis", action="store_true", help="afterwards run schemathesis, with as many examples"
    )
    fuzzer.add_argument(
        "--phases",
        default="examples,coverage,fuzzing,stateful",
        metavar="NAMES",
        help="of schemathesis; default: all, of which coverage alone sends thousands of requests",
    )
    watcher = parsers.add_parser("watch", help="judge live traffic, as a proxy that changes nothing")
    watcher.add_argument("--upstream", required=True, metavar="URL", help="such as http://127.0.0.1:8000")
    watcher.add_argument(
        "--listen", default=":9000", metavar="[HOST]:PORT", help="loopback, unless a host is named"
    )
    watcher.add_argument("--record", type=Path, metavar="FILE", help="write every byte and its time")
    watcher.add_argument("--connections", type=_positive(int), default=512, metavar="N")
    _add_outputs(watcher)


def run_command(arguments: argparse.Namespace) -> int:
    """Run what was parsed; gives the exit status."""
    try:
        return _run(arguments)
    except UnusableInput as error:
        console().print(printable(str(error)), markup=False)
        return 2
    except KeyboardInterrupt:
        console().print("Interrupted.")
        return INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "check":
            return run_check(
                msgspec.structs.replace(_target(arguments), seed=arguments.seed),
                _selection(arguments),
                _outputs(arguments),
                concurrency=int(arguments.concurrency),
                timeout=arguments.timeout,
                recording=arguments.record,
                server=arguments.server,
                conceal=arguments.conceal,
                trials=max(0, arguments.trials),
                budget=_budget(arguments),
                capabilities=capabilities_of(arguments.capabilities),
                sdk=clients_of(arguments.sdk),
            )
        case "list" if arguments.markdown and not arguments.rules:
            raise UnusableInput("--markdown writes the rules as a page: say `list --rules --markdown`.")
        case "list" if arguments.rules:
            everything = Selection(ids=[], surfaces=[])
            if _selection(arguments) != everything:
                raise UnusableInput("--rules lists every rule; leave out what chooses checks.")
            return commands.run_rules(markdown=arguments.markdown)
        case "list":
            return commands.run_list(_selection(arguments))
        case "explain":
            return commands.run_explain(arguments.names)
        case "judge":
            return commands.run_judge(
                arguments.recording, _selection(arguments), _outputs(arguments), clients_of(arguments.sdk)
            )
        case "export":
            return commands.run_export(arguments.recording, arguments.har)
        case "matrix":
            return run_matrix(arguments.reports, arguments.markdown, arguments.html, console())
        case "diff" | "exact" | "fuzz" if said := why_unwritable({"--json": arguments.json}):
            raise UnusableInput(said)
        case "diff":
            return _diff(arguments)
        case "exact":
            return run_exact(
                _target(arguments),
                arguments.scripts,
                out=console(),
                concurrency=int(arguments.concurrency),
                patience=arguments.timeout,
                json_file=arguments.json,
            )
        case "fuzz":
            return commands.run_fuzz(
                _target(arguments),
                arguments.operations,
                examples=int(arguments.examples),
                seed=arguments.seed,
                patience=arguments.timeout,
                json_file=arguments.json,
                phases=arguments.phases if arguments.schemathesis else None,
            )
        case "watch":
            return run_watch(
                arguments.upstream,
                arguments.listen,
                _outputs(arguments),
                out=console(),
                recording=arguments.record,
                connections=int(arguments.connections),
            )
    raise AssertionError(arguments.command)


def _budget(arguments: argparse.Namespace) -> Budget:
    return Budget(
        tokens=arguments.max_tokens_total,
        tokens_each=arguments.max_tokens_each,
        seconds=arguments.max_seconds,
    )


def _diff(arguments: argparse.Namespace) -> int:
    first, second = arguments.urls
    model_b = arguments.model_b or arguments.model_a
    return run_diff(
        target_of(first, arguments.model_a, arguments.api_key_a, "--api-key-a"),
        target_of(second, model_b, arguments.api_key_b, "--api-key-b"),
        count=int(arguments.examples),
        seed=arguments.seed,
        out=console(),
        patience=arguments.timeout,
        tolerance=arguments.tolerance,
        json_file=arguments.json,
    )


def _add_target(parser: Parser) -> None:
    parser.add_argument("--base-url", required=True, metavar="URL", help="such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"), help="default: OPENAI_API_KEY")


def _target(arguments: argparse.Namespace) -> Target:
    return target_of(arguments.base_url, arguments.model, arguments.api_key)


def _add_selection(parser: Parser) -> None:
    parser.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="checks, their beginnings, patterns such as '*/usage', or rules; default: all",
    )
    parser.add_argument("--profile", choices=tuple(PROFILES), default="full")
    parser.add_argument(
        "--level", choices=("must", "should", "may"), default="may", help="the mildest wanted"
    )
    parser.add_argument(
        "--surface", action="append", default=[], metavar="NAME", help="such as chat; repeatable"
    )
    parser.add_argument(
        "--requirements", choices=revisions(), help="only the checks of this published revision"
    )


def _selection(arguments: argparse.Namespace) -> Selection:
    return Selection(
        ids=arguments.ids,
        profile=arguments.profile,
        level=arguments.level.upper(),
        surfaces=arguments.surface,
        requirements=arguments.requirements,
    )


def _add_clients(parser: Parser) -> None:
    parser.add_argument(
        "--sdk",
        default="",
        metavar="CLIENTS",
        help=f"afterwards let official clients read what was recorded: {', '.join(CLIENTS)}",
    )


def _add_outputs(parser: Parser) -> None:
    parser.add_argument("--strict", action="store_true", help="SHOULD counts as well")
    for name, said in (
        ("json", "the report"),
        ("junit", "JUnit XML"),
        ("markdown", "Markdown"),
        ("html", "one self-contained page"),
        ("badge", "a badge: an SVG by its name, else JSON for shields.io"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {said}")
    parser.add_argument(
        "--baseline", "--expected-failures", type=Path, metavar="FILE", help="violations that are known"
    )
    parser.add_argument(
        "--update-baseline", action="store_true", help="write what is broken now into the baseline"
    )


def _outputs(arguments: argparse.Namespace) -> Outputs:
    return Outputs(
        json=arguments.json,
        junit=arguments.junit,
        markdown=arguments.markdown,
        html=arguments.html,
        badge=arguments.badge,
        baseline=arguments.baseline,
        update_baseline=arguments.update_baseline,
        strict=arguments.strict,
    )


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise ValueError(text)
        return value

    read.__name__ = f"positive {kind.__name__}"
    return read


def _seed(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is no seed: the contract knows integers of 64 bits")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """The judge by itself, without the server's commands."""
    parser = argparse.ArgumentParser(prog="plumbline", description=__doc__)
    add_commands(parser.add_subparsers(dest="command", required=True, metavar="COMMAND"))
    with ready():
        return run_command(parsed(parser, argv))
