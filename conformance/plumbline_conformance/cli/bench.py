"""Read the options of `plumbline bench`."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from plumbline_conformance.bench import Plan, run_bench
from plumbline_conformance.bench.load import Load
from plumbline_conformance.bench.prompts import lengths_of, read_prompts
from plumbline_conformance.bench.summary import bounds_of
from plumbline_conformance.client.target_input import UnusableInput, headers_of, target_of
from plumbline_conformance.console.output_files import why_unwritable
from plumbline_conformance.console.terminal import console
from plumbline_conformance.suite.model import Target

__all__ = ["bench"]

_MOST_AT_A_TIME = 4096
_MOST_REQUESTS = 1_000_000


def bench(arguments: argparse.Namespace) -> int:
    """Measure servers as the command line says; return the exit status."""
    if reason := why_unwritable(
        {"--json": arguments.json, "--html": arguments.html}, {"--prompts": arguments.prompts}
    ):
        raise UnusableInput(reason)
    targets = _targets(arguments)
    plan = Plan(
        targets=targets,
        api=arguments.api,
        loads=_loads(arguments),
        requests=int(arguments.requests),
        rounds=int(arguments.rounds or (3 if len(targets) == 2 else 1)),
        words=lengths_of(arguments.prompt_words, "--prompt-words"),
        answers=lengths_of(arguments.output_tokens, "--output-tokens"),
        given=None if arguments.prompts is None else read_prompts(arguments.prompts),
        bounds=bounds_of(arguments.goodput),
        fields=_fields(arguments.body),
        seed=arguments.seed,
        timeout=arguments.timeout,
    )
    return run_bench(plan, console(), arguments.json, arguments.html)


def _targets(arguments: argparse.Namespace) -> list[Target]:
    urls, models = arguments.urls, arguments.model
    if len(urls) > 2:
        raise UnusableInput(f"bench compares two servers, and {len(urls)} URLs are given. Leave some out.")
    if len(models) > len(urls):
        raise UnusableInput("--model is given more often than there are servers. Leave one out.")
    names = models or [""]
    names += names[-1:] * (len(urls) - len(names))
    headers = headers_of(arguments.header)
    return [
        msgspec.structs.replace(target_of(url, name, arguments.api_key), headers=headers)
        for url, name in zip(urls, names, strict=True)
    ]


def _loads(arguments: argparse.Namespace) -> list[Load]:
    if max(arguments.concurrency) > _MOST_AT_A_TIME:
        raise UnusableInput(f"--concurrency: at most {_MOST_AT_A_TIME} requests at a time can be sent.")
    if arguments.requests > _MOST_REQUESTS:
        raise UnusableInput(f"--requests: at most {_MOST_REQUESTS} can be kept in memory. Use --rounds.")
    if arguments.rate:
        return [Load(rate=rate) for rate in arguments.rate]
    return [Load(concurrency=int(number)) for number in arguments.concurrency]


def _fields(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise UnusableInput(f"--body: {text[:80]!r} is not a JSON object.") from None
