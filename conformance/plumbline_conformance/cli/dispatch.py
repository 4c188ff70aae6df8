"""Test servers of the OpenAI API: check, list, explain, judge, export, matrix, diff, exact, fuzz, bench and others.

Exit status: 0 conforming; 1 violations, a refused core request or a stale baseline; 2 the command could not run or no
check reached a verdict; 3 the suite itself failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli import commands
from plumbline_conformance.cli.arguments import add_commands
from plumbline_conformance.cli.bench import bench
from plumbline_conformance.cli.client import client
from plumbline_conformance.cli.live_check import run_check
from plumbline_conformance.cli.matrix import run_matrix
from plumbline_conformance.cli.vectors import vectors
from plumbline_conformance.cli.verify import plan_of
from plumbline_conformance.client.first_model import with_model
from plumbline_conformance.client.target_input import (
    UnusableInput,
    capabilities_of,
    clients_of,
    headers_of,
    target_of,
)
from plumbline_conformance.console.output_files import why_unwritable
from plumbline_conformance.console.streams import parse_arguments, robust_output
from plumbline_conformance.console.terminal import INTERRUPTED, console
from plumbline_conformance.differential import run_diff
from plumbline_conformance.exact import run_exact
from plumbline_conformance.recording.redaction import redacted_url
from plumbline_conformance.reports.conclude import Outputs
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.runner.budget import Budget
from plumbline_conformance.suite.model import Target
from plumbline_conformance.suite.selection import Selection
from plumbline_conformance.transcript.defects import traceback_of
from plumbline_conformance.verify.causes import Readers
from plumbline_conformance.verify.run import run_verify
from plumbline_conformance.watch import run_watch

__all__ = ["main", "run_command"]


def run_command(arguments: argparse.Namespace, readers: Readers | None = None) -> int:
    """Run the parsed command; returns the exit status.

    Args:
        arguments: the command.
        readers: makes what reads raw texts of models, for `verify`.
    """
    try:
        return _run(arguments, readers)
    except UnusableInput as error:
        console().print(printable(str(error)), markup=False)
        return 2
    except KeyboardInterrupt:
        console().print("Interrupted.")
        return INTERRUPTED
    except Exception as error:
        # The exit status 1 of an uncaught exception would mean that the server breaks a rule.
        console().print("The judge failed; please report this:", markup=False)
        for line in traceback_of(error).splitlines():
            console().print(printable(line), markup=False)
        return 3


def _run(arguments: argparse.Namespace, readers: Readers | None) -> int:
    match arguments.command:
        case "check":
            _take_url(arguments)
            return run_check(
                msgspec.structs.replace(_target(arguments), seed=arguments.seed, mcp=arguments.mcp),
                _selection(arguments),
                _outputs(arguments),
                concurrency=int(arguments.concurrency),
                timeout=arguments.timeout,
                recording=arguments.record,
                server=arguments.server,
                conceal=arguments.conceal,
                trials=max(0, arguments.trials),
                budget=_budget(arguments),
                restart_wait=arguments.restart_wait,
                capabilities=capabilities_of(arguments.capabilities),
                sdk=clients_of(arguments.sdk),
                resumed=arguments.resume,
            )
        case "list":
            return _list(arguments)
        case "explain":
            return commands.run_explain(arguments.names)
        case "judge" if arguments.submission:
            return commands.run_submission(arguments.recording)
        case "judge":
            return commands.run_judge(
                arguments.recording, _selection(arguments), _outputs(arguments), clients_of(arguments.sdk)
            )
        case "export":
            return commands.run_export(arguments.recording, arguments.har)
        case "matrix":
            return run_matrix(arguments.reports, arguments.markdown, arguments.html, console())
        case "diff" | "exact" | "fuzz" | "vectors" if reason := why_unwritable({"--json": arguments.json}):
            raise UnusableInput(reason)
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
        case "verify":
            return run_verify(
                _target(arguments),
                plan_of(arguments),
                readers,
                out=console(),
                json_file=arguments.json,
                junit_file=arguments.junit,
                html_file=arguments.html,
            )
        case "client":
            return client(arguments)
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
        case "vectors":
            return vectors(arguments)
        case "bench":
            return bench(arguments)
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


def _list(arguments: argparse.Namespace) -> int:
    if not arguments.rules:
        if arguments.markdown:
            raise UnusableInput("--markdown needs --rules: use `list --rules --markdown`.")
        return commands.run_list(_selection(arguments))
    if _selection(arguments) != Selection(ids=[], surfaces=[]):
        raise UnusableInput(
            "--rules lists every rule; leave out ids, --profile, --level, --surface and --requirements."
        )
    return commands.run_rules(markdown=arguments.markdown, clauses=arguments.clauses)


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


def _target(arguments: argparse.Namespace) -> Target:
    if arguments.base_url is None:
        raise UnusableInput("Which server? Give its base URL: plumbline check http://127.0.0.1:8000/v1")
    found = target_of(arguments.base_url, arguments.model, arguments.api_key)
    return with_model(msgspec.structs.replace(found, headers=headers_of(arguments.header)))


def _take_url(arguments: argparse.Namespace) -> None:
    """Take the URL of `plumbline check URL ID …` from the ids."""
    if arguments.ids and "://" in arguments.ids[0]:
        url, *arguments.ids = arguments.ids
        if arguments.base_url is not None:
            raise UnusableInput(
                f"The server is given twice: {redacted_url(url)} and --base-url. Keep one of them."
            )
        arguments.base_url = url


def _selection(arguments: argparse.Namespace) -> Selection:
    return Selection(
        ids=arguments.ids,
        profile=arguments.profile,
        level=arguments.level.upper(),
        surfaces=arguments.surface,
        requirements=arguments.requirements,
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the judge's commands without the server's."""
    parser = argparse.ArgumentParser(prog="plumbline", description=__doc__)
    add_commands(parser.add_subparsers(dest="command", required=True, metavar="COMMAND"))
    with robust_output():
        return run_command(parse_arguments(parser, argv))
