"""Fuzz our server or another one with our strategies, then with schemathesis (`nox -s fuzz`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from own_server.launch import MODEL, DidNotStart, launched_server
from plumbline_conformance.console.terminal import console
from plumbline_conformance.fuzz.campaign import chosen, search
from plumbline_conformance.fuzz.schemathesis_run import PHASES, run_schemathesis
from plumbline_conformance.suite.scenario import Target

__all__ = ["fuzz", "main"]


def fuzz(base_url: str, model: str, *, examples: int, seed: int, phases: str = PHASES) -> int:
    """Run both, and return the worse exit status."""
    target = Target(base_url=base_url, model=model)
    ours = search(target, examples=examples, seed=seed, out=console(), wanted=chosen(()), patience=60.0)
    return max(ours, run_schemathesis(target, examples=examples, seed=seed, phases=phases, shown=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options, and start our server if no URL is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, metavar="N", help="for each of the two fuzzers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phases", default=PHASES, help="of schemathesis; coverage alone takes minutes")
    parser.add_argument("url", nargs="?", metavar="URL", help="default: our server is started")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="options of `plumbline serve`")
    arguments = parser.parse_args(argv)
    options = {"examples": arguments.examples, "seed": arguments.seed}
    if arguments.url:
        return fuzz(arguments.url, arguments.model, phases=arguments.phases, **options)
    try:
        with launched_server(None, f"--served-model-name={MODEL}", *arguments.serve) as base_url:
            return fuzz(base_url, arguments.model, phases=arguments.phases, **options)
    except DidNotStart:
        print("The server did not start; its log above has the reason.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
