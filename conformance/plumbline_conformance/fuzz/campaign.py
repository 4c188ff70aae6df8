"""Run `plumbline fuzz`: send generated requests, check the answers, shrink and print counterexamples.

After a counterexample the search continues for other kinds of fault.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample
from rich.console import Console
from rich.markup import escape

from plumbline_conformance.client.http import exchange_of, sender
from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.console.terminal import INTERRUPTED
from plumbline_conformance.fuzz.claims import Violation, claims
from plumbline_conformance.fuzz.strategies import MODES, FuzzedOperation, operations, requests
from plumbline_conformance.judge.redacted_findings import shows_secrets
from plumbline_conformance.recording.redaction import concealed, redacted_exchange, redacted_url, secrets_of
from plumbline_conformance.reports.curl import curl
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.runner.preflight import PreflightResult, found_by
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import Request, Target
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["Counterexample", "chosen", "search"]

_KINDS = 5
"""Maximum number of kinds of fault to find in one mode of one operation."""
_GENERATED = 3
"""Generated requests per request to send; duplicates of harmless requests are not sent again."""


class Counterexample(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest request found that violates a property."""

    operation: str
    mode: str
    claim: Violation
    command: str


class _Prober:
    """Send the requests of one search, and count the answers."""

    def __init__(
        self, send: Callable[[Request], Exchange], operation: FuzzedOperation, secrets: Sequence[str]
    ) -> None:
        self._send = send
        self._operation = operation
        self._secrets = secrets
        self.known: set[str] = set()
        self.sent = 0
        self.answers: dict[int, int] = {}
        self._harmless: set[tuple[bytes, ...]] = set()

    def fresh(self, request: Request) -> bool:
        """Return whether this request is not known to be harmless.

        Half of hypothesis's variations repeat earlier requests.
        """
        return _bytes_of(request) not in self._harmless

    def new(self, request: Request) -> list[Violation]:
        """Send the request; return the violated properties that are not reported yet."""
        self.sent += 1
        exchange = self._send(request)
        self.answers[exchange.status] = self.answers.get(exchange.status, 0) + 1
        found = self._redacted_claims(exchange, list(claims(self._operation, exchange)))
        if exchange.status == 0 and not self._alive():
            found = [
                Violation(
                    name="alive", expected="a server that is alive afterwards", actual="it answers nothing"
                )
            ]
        new = [claim for claim in found if claim.name not in self.known]
        if not new:
            self._harmless.add(_bytes_of(request))
        return new

    def _redacted_claims(self, exchange: Exchange, found: list[Violation]) -> list[Violation]:
        """Return the claims without credentials that the answer repeats."""
        covered = redacted_exchange(exchange, self._secrets)
        again: dict[str, Violation] = {}
        if found and shows_secrets(exchange, covered):
            again = {claim.name: claim for claim in claims(self._operation, covered)}
        # Redact the texts as well: a key split over two events of a stream is complete only in them.
        known = secrets_of(exchange, self._secrets)
        return [_concealed(again.get(claim.name) or claim, known) for claim in found]

    def _alive(self) -> bool:
        return self._send(Request(path="/models", method="GET")).status != 0


def _bytes_of(request: Request) -> tuple[bytes, ...]:
    return (request.content or b"", *(f"{name}:{value}".encode() for name, value in request.headers.items()))


def _concealed(claim: Violation, secrets: Sequence[str]) -> Violation:
    name, expected, actual = (concealed(text, secrets) for text in (claim.name, claim.expected, claim.actual))
    return msgspec.structs.replace(claim, name=name, expected=expected, actual=actual)


def chosen(names: Sequence[str]) -> list[FuzzedOperation]:
    """Return the operations of these ids; all if there are none.

    Raises:
        UnusableInput: no operation has such an id.
    """
    known = operations()
    if unknown := [name for name in names if name not in known]:
        raise UnusableInput(f"OPERATION {unknown[0]} is unknown: choose from {', '.join(known)}")
    return [known[name] for name in names or known]


def search(
    target: Target,
    *,
    examples: int,
    seed: int,
    out: Console,
    wanted: Sequence[FuzzedOperation],
    patience: float = 30.0,
    json_file: Path | None = None,
) -> int:
    """Fuzz a server; return 0 nothing found, 1 found, 2 nothing was tested, 130 interrupted.

    Args:
        target: the server.
        examples: number of requests, spread over operations and modes.
        seed: the random seed.
        out: the console.
        wanted: the operations.
        patience: seconds to wait for an answer.
        json_file: the file for counterexamples, if any.

    Raises:
        UnusableInput: the server cannot be reached, or refuses a simple request.
    """
    tally = _Tally()
    interrupted = False
    with asyncio.Runner() as runner:
        opened = sender(target, patience)
        sending = runner.run(opened.__aenter__())

        def send(request: Request) -> Exchange:
            return runner.run(_one(sending, request))

        try:
            if send(Request(path="/models", method="GET")).status == 0:
                raise UnusableInput(f"URL {redacted_url(target.base_url)} cannot be reached")
            known = runner.run(_known(sending, target))
            if known.why is not None:
                raise UnusableInput(known.why)
            _search_all(wanted, target, send, examples, seed, out, tally)
        except KeyboardInterrupt:
            interrupted = True
            out.print("Interrupted before the end of the search; earlier counterexamples are kept.")
        finally:
            runner.run(opened.__aexit__(None, None, None))
    out.print(f"{tally.sent} requests, {len(tally.found)} counterexamples")
    if json_file is not None:
        json_file.write_text(json.dumps(msgspec.to_builtins(tally.found), indent=1) + "\n", "utf-8")
    return INTERRUPTED if interrupted else _status(tally, out)


class _Tally(msgspec.Struct):
    """Counterexamples and counts of a search."""

    found: list[Counterexample] = msgspec.field(default_factory=list)
    sent: int = 0
    served: int = 0
    """Valid requests that were answered with status 200."""


def _search_all(
    wanted: Sequence[FuzzedOperation],
    target: Target,
    send: Callable[[Request], Exchange],
    examples: int,
    seed: int,
    out: Console,
    tally: _Tally,
) -> None:
    """Search each operation in each mode, print the counterexamples, and add them to the tally."""
    secrets = [target.api_key] if target.api_key else []
    each = examples / len(wanted) / sum(MODES.values())
    for operation, (mode, weight) in product(wanted, MODES.items()):
        prober = _Prober(send, operation, secrets)
        for counterexample in _search(prober, operation, mode, target, max(1, int(each * weight)), seed):
            _show(out, counterexample)
            tally.found.append(counterexample)
        tally.sent += prober.sent
        tally.served += prober.answers.get(200, 0) if mode == "valid" else 0
        counts = ", ".join(f"{n} × {status}" for status, n in sorted(prober.answers.items()))
        out.print(f"{operation.id} {mode}: {counts}", markup=False)


def _status(tally: _Tally, out: Console) -> int:
    """Return the exit status of a search that ended."""
    if not tally.found and not tally.served:
        out.print(
            "No valid request got an answer with status 200, so the server could not be tested: "
            "the lines above show its answers."
        )
        return 2
    return 1 if tally.found else 0


async def _known(sending: Any, target: Target) -> PreflightResult:
    return await found_by(sending, target)


async def _one(send: Any, request: Request) -> Exchange:
    exchange: Exchange = await send(request)
    return exchange


def _search(
    prober: _Prober, operation: FuzzedOperation, mode: str, target: Target, examples: int, seed: int
) -> Iterator[Counterexample]:
    kinds = 0
    how = settings(
        max_examples=_GENERATED * examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    while kinds < _KINDS:
        kind: set[str] = set()
        enough = prober.sent + examples

        def breaks(request: Request, kind: set[str] = kind, enough: int = enough) -> bool:
            if not prober.fresh(request) or (not kind and prober.sent >= enough):
                return False
            names = {claim.name for claim in prober.new(request)}
            if not kind and names:
                kind.add(sorted(names)[0])  # Shrinking keeps to the first fault.
            return bool(kind & names)

        generator = random.Random(f"{seed} {operation.id} {mode} {kinds}")
        try:
            smallest = find(requests(operation, mode, target.model), breaks, settings=how, random=generator)
        except NoSuchExample:
            break
        claim = next((claim for claim in prober.new(smallest) if claim.name in kind), None)
        name = next(iter(kind))
        prober.known.add(name)
        shown = claim or Violation(
            name=name, expected="the same answer twice", actual="a fault that occurred once"
        )
        command = curl(exchange_of(target, smallest), key=target.api_key is not None)
        kinds += 1
        yield Counterexample(operation=operation.id, mode=mode, claim=shown, command=command)


def _show(out: Console, found: Counterexample) -> None:
    claim = found.claim
    out.print(f"[bold red]found[/] {escape(printable(f'{found.operation} {found.mode}: {claim.name}'))}")
    for rule in claim.rules:
        out.print(f"    {rule}: {escape(rules()[rule]['sentence'])}")
    out.print(f"    expected {escape(printable(claim.expected))}")
    out.print(f"    actual   {escape(printable(claim.actual))}")
    out.print(f"    see it   {escape(printable(found.command))}")
