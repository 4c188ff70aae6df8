"""Read the options of `plumbline verify`."""

from __future__ import annotations

import argparse

import msgspec

from plumbline_conformance.client.target_input import UnusableInput
from plumbline_conformance.console.output_files import why_unwritable
from plumbline_conformance.verify.run import Plan

__all__ = ["plan_of"]


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
    try:
        body = msgspec.json.decode(arguments.body)
    except msgspec.DecodeError:
        body = None
    if not isinstance(body, dict):
        raise UnusableInput("--body must be a JSON object.")
    return Plan(
        samples=arguments.samples,
        baselines=arguments.baseline,
        numbers=frozenset(map(int, arguments.row)),
        repeats=int(arguments.repeats),
        body=body,
        results=arguments.results,
        concurrency=int(arguments.concurrency),
        timeout=arguments.timeout,
        tool_parser=arguments.tool_parser,
        reasoning_parser=arguments.reasoning_parser,
    )
