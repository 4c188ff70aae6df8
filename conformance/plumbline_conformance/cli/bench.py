"""Read the options of `plumbline bench`."""

from __future__ import annotations

import argparse

import msgspec

from plumbline_conformance.bench import Plan, run_bench
from plumbline_conformance.bench.load import Load
from plumbline_conformance.bench.prompts import lengths_of, read_prompts
from plumbline_conformance.bench.summary import bounds_of
from plumbline_conformance.cli.common import fields_of
from plumbline_conformance.client.first_model import with_model
from plumbline_conformance.client.target_input import UnusableInput, headers_of, target_of
from plumbline_conformance.console.output_files import why_unwritable
from plumbline_conformance.console.terminal import console
from plumbline_conformance.suite.model import Target

__all__ = ["bench"]

_MOST_AT_A_TIME = 4096
_MOST_REQUESTS = 1_000_000
_MOST_TIMES = 50_000_000
"""Times of pieces that are kept: about 2 GB while they are sorted."""


def bench(arguments: argparse.Namespace) -> int:
    """Measure servers as the command line says; return the exit status."""
    if reason := why_unwritable(
        {"--json": arguments.json, "--html": arguments.html}, {"--prompts": arguments.prompts}
    ):
        raise UnusableInput(reason)
    targets, loads = _targets(arguments), _loads(arguments)
    rounds = int(arguments.rounds or (3 if len(targets) == 2 else 1))
    answers = lengths_of(arguments.output_tokens, "--output-tokens")
    for load in loads:
        requests = int(arguments.requests or load.requests)
        if requests * rounds > _MOST_REQUESTS or requests * rounds * answers.most > _MOST_TIMES:
            raise UnusableInput(
                f"{requests} requests of {load.label}, {rounds} times, with answers of up to {answers.most} tokens: "
                "their times do not fit in memory. Lower --requests, --rounds or --output-tokens."
            )
    plan = Plan(
        targets=targets,
        api=arguments.api,
        loads=loads,
        requests=int(arguments.requests),
        rounds=rounds,
        words=lengths_of(arguments.prompt_words, "--prompt-words"),
        answers=answers,
        given=None if arguments.prompts is None else read_prompts(arguments.prompts),
        bounds=bounds_of(arguments.goodput),
        fields=fields_of(arguments.body),
        seed=arguments.seed,
        timeout=arguments.timeout,
    )
    # Servers are asked when all else is right.
    plan = msgspec.structs.replace(plan, targets=[with_model(each) for each in targets])
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
    if arguments.rate:
        return [Load(rate=rate) for rate in arguments.rate]
    return [Load(concurrency=int(number)) for number in arguments.concurrency]
