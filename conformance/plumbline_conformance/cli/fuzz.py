"""Send generated requests (`plumbline fuzz`)."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from rich.console import Console

from plumbline_conformance.client.first_model import with_model
from plumbline_conformance.client.options import Server
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import AtLeastOne, Describe, Positive, Texts, UnusableInput
from plumbline_conformance.reports.conclude import File

__all__ = ["FuzzCommand"]

_requests = partial(Describe, "requests")


class FuzzCommand(Command, frozen=True, kw_only=True):
    """Fuzz a server, and run schemathesis if that is wanted; returns the worse exit status."""

    example = "plumbline fuzz http://127.0.0.1:8000/v1 --model my-model --examples 2000"
    extra = "fuzz"

    under_test: Server
    operations: Annotated[
        Texts,
        _requests("operation ids such as createResponse", "OPERATION", default="all", positional=True),
    ] = ()
    examples: Annotated[AtLeastOne, _requests("requests in total", "N")] = 600
    seed: Annotated[int, _requests("seed of the requests", "N")] = 0
    timeout: Annotated[Positive, _requests("time limit of one request", "SECONDS")] = 30.0
    json: Annotated[File, Describe("reports", "write the counterexamples", "FILE", writes=True)] = None
    schemathesis: Annotated[bool, _requests("run schemathesis afterwards, with as many examples")] = False
    phases: Annotated[
        str,
        _requests(
            "phases of schemathesis; `coverage` sends thousands of requests", "NAMES", default="all four"
        ),
    ] = "examples,coverage,fuzzing,stateful"

    def run(self, out: Console) -> int:
        """Send the requests, and report counterexamples."""
        # Hypothesis and schemathesis are optional dependencies.
        from plumbline_conformance.fuzz.campaign import chosen, search
        from plumbline_conformance.fuzz.schemathesis_run import run_schemathesis, why_not

        target = self.under_test.target()
        wanted = chosen(self.operations)
        if self.schemathesis and (why := why_not(target)) is not None:
            raise UnusableInput(why)
        target = with_model(target)
        status = search(
            target,
            examples=self.examples,
            seed=self.seed,
            out=out,
            wanted=wanted,
            patience=self.timeout,
            json_file=self.json,
        )
        if not self.schemathesis or status not in (0, 1):
            return status
        found = run_schemathesis(
            target,
            examples=self.examples,
            seed=self.seed,
            phases=self.phases,
            operations=self.operations,
            patience=self.timeout,
        )
        return max(status, found)
