"""Send each request to both servers, compare the answers, and group the differences by rule (`plumbline compare`).

If two texts differ, both servers get the request once more. A server that gives another answer then cannot be compared:
the request is reported as unclear.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console
from rich.markup import escape

from plumbline_conformance.client.first_model import with_model
from plumbline_conformance.client.http import sender
from plumbline_conformance.console.command import OptionGroup
from plumbline_conformance.console.options import AtLeastOne, Describe, Positive, UnusableInput
from plumbline_conformance.differential.answer import answer_of
from plumbline_conformance.differential.compare import Difference, compare
from plumbline_conformance.differential.probes import Probe, probes
from plumbline_conformance.judge.redacted_findings import shows_secrets
from plumbline_conformance.recording.redaction import concealed, redacted_exchange, secrets_of
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.runner.preflight import discovered
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import Request, Target
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["Outcome", "Servers", "differences", "run_diff"]

Seen = tuple[Exchange, Exchange]
"""One request to both servers."""
_SHOWN = 4
"""Examples of one kind that are printed."""


_server = partial(Describe, "against another server")


class Servers(OptionGroup, frozen=True, kw_only=True):
    """The other server, and what both are asked."""

    reference_model: Annotated[
        str, _server("model name on the other server", "NAME", default="as on the first")
    ] = ""
    reference_api_key: Annotated[
        str | None, _server("API key of the other server", "KEY", default="none", secret=True)
    ] = None
    examples: Annotated[AtLeastOne, _server("generated requests", "N")] = 40
    seed: Annotated[int, _server("seed of the requests", "N")] = 0
    tolerance: Annotated[Positive, _server("accepted difference between logprobs, in nats", "X")] = 0.05


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; `--json` writes it."""

    compared: int
    differences: list[Difference]
    unclear: dict[str, str]
    """Requests that could not be compared, and why."""
    silent: list[str]
    """Servers that sent no response at all."""
    served: int = 0
    """Valid requests that both servers answered with status 200."""


async def differences(
    a: Target, b: Target, wanted: Sequence[Probe], *, patience: float = 60.0, tolerance: float = 0.05
) -> Outcome:
    """Send all requests to both servers, one at a time each, so that batching does not change an answer."""
    secrets = [target.api_key for target in (a, b) if target.api_key]
    async with sender(a, patience) as send_a, sender(b, patience) as send_b:

        async def ask(probe: Probe) -> Seen:
            one, other = await asyncio.gather(send_a(_request(probe, a)), send_b(_request(probe, b)))
            return one, other

        comparison = _Comparison(ask, secrets, tolerance)
        for probe in wanted:
            await comparison.add(probe)
    return comparison.outcome()


class _Comparison:
    """Compare the answers of two servers request by request, and collect the outcome.

    Args:
        ask: sends a request to both servers.
        secrets: texts to redact in the outcome.
        tolerance: how much logprobs may differ.
    """

    def __init__(
        self, ask: Callable[[Probe], Awaitable[Seen]], secrets: Sequence[str], tolerance: float
    ) -> None:
        self._ask = ask
        self._secrets = secrets
        self._tolerance = tolerance
        self._found: list[Difference] = []
        self._unclear: dict[str, str] = {}
        self._heard = {"A": False, "B": False}
        self._compared = self._served = 0

    async def add(self, probe: Probe) -> None:
        """Send a request to both servers, and compare the answers if that is possible."""
        seen = await self._ask(probe)
        for name, exchange in zip(self._heard, seen, strict=True):
            self._heard[name] |= exchange.status != 0
        one, other = (answer_of(probe, exchange) for exchange in seen)
        if one is None or other is None:
            self._unclear[probe.name] = self._malformed(seen, (one, other))
            return
        here = list(compare(probe, one, other, tolerance=self._tolerance))
        if any(difference.facet == "text" for difference in here):
            again = [answer_of(probe, exchange) for exchange in await self._ask(probe)]
            if [None if answer is None else answer.text for answer in again] != [one.text, other.text]:
                self._unclear[probe.name] = "a server gave another answer to the same request"
                return
        self._compared += 1
        self._served += probe.rule is None and (one.status, other.status) == (200, 200)
        self._found += _redacted_differences(here, probe, seen, self._secrets, self._tolerance)

    def _malformed(self, seen: Seen, answers: Sequence[object]) -> str:
        return "; ".join(
            _why(name, redacted_exchange(exchange, self._secrets))
            for name, exchange, answer in zip(self._heard, seen, answers, strict=True)
            if answer is None
        )

    def outcome(self) -> Outcome:
        """Return the results so far."""
        return Outcome(
            compared=self._compared,
            differences=self._found,
            unclear=self._unclear,
            silent=[name for name, heard in self._heard.items() if not heard],
            served=self._served,
        )


def _redacted_differences(
    found: list[Difference], probe: Probe, seen: Sequence[Exchange], secrets: Sequence[str], tolerance: float
) -> list[Difference]:
    """Redact credentials that an answer repeats in the differences."""
    known = secrets_of(seen[0], secrets_of(seen[1], secrets))
    covered = [redacted_exchange(exchange, known) for exchange in seen]
    again: dict[str, Difference] = {}
    if found and any(map(shows_secrets, seen, covered)):
        one, other = (answer_of(probe, exchange) for exchange in covered)
        if one is not None and other is not None:
            again = {shown.facet: shown for shown in compare(probe, one, other, tolerance=tolerance)}
    # The texts are redacted as well: a key that is split over two events of a stream is whole only there.
    return [_concealed(again.get(difference.facet) or difference, known) for difference in found]


def _concealed(found: Difference, secrets: Sequence[str]) -> Difference:
    return msgspec.structs.replace(found, a=concealed(found.a, secrets), b=concealed(found.b, secrets))


def _request(probe: Probe, target: Target) -> Request:
    return Request(path=probe.path, json={"model": target.model, **probe.body})


def _why(name: str, exchange: Exchange) -> str:
    return f"{name}: {exchange.error or 'the answer is malformed'}"


def run_diff(
    a: Target,
    b: Target,
    wanted: Servers,
    *,
    out: Console,
    patience: float,
    json_file: Path | None = None,
) -> int:
    """Compare two servers, print and write the result. Without a model, the second one gets that of the first.

    Returns:
        The exit status: 0 without differences, 1 with some, 2 if nothing could be compared.

    Raises:
        UnusableInput: a server refuses a simple request.
    """
    a = with_model(a)
    b = b if b.model else msgspec.structs.replace(b, model=a.model)
    known = [asyncio.run(discovered(target, patience=patience)) for target in (a, b)]
    refused = [f"{name}: {found.why}" for name, found in zip("AB", known, strict=True) if found.why]
    if refused:
        raise UnusableInput("; ".join(refused))
    a, b = (found.target for found in known)
    outcome = asyncio.run(
        differences(
            a,
            b,
            probes(wanted.examples, wanted.seed),
            patience=patience,
            tolerance=wanted.tolerance,
        )
    )
    for rule, group in groupby(sorted(outcome.differences, key=_key), lambda found: found.rule):
        _print_rule(out, rule, list(group))
    for name, why in outcome.unclear.items():
        out.print(f"[cyan]unclear[/] {escape(printable(name))}: {escape(printable(why))}")
    for name in outcome.silent:
        out.print(f"{name} cannot be reached.")
    facets = Counter(found.facet for found in outcome.differences)
    counts = ", ".join(f"{number} in {facet}" for facet, number in facets.most_common()) or "no difference"
    out.print(f"{outcome.compared} requests compared, {len(outcome.unclear)} unclear: {counts}")
    if json_file is not None:
        json_file.write_text(json.dumps(msgspec.to_builtins(outcome), indent=1) + "\n", "utf-8")
    if outcome.differences:
        return 1
    if not outcome.served:
        out.print(
            "No valid request got an answer with status 200 from both servers: nothing could be compared."
        )
        return 2
    return 0


def _key(found: Difference) -> tuple[str, str]:
    return found.rule, found.facet


def _print_rule(out: Console, rule: str, found: Sequence[Difference]) -> None:
    sentence = rules()[rule]["sentence"]
    out.print(f"[bold]{rule}[/] {escape(sentence)}")
    for facet, group in groupby(found, lambda difference: difference.facet):
        kind = list(group)
        out.print(f"    {facet}: {len(kind)} requests")
        for difference in kind[:_SHOWN]:
            out.print(f"        {escape(printable(difference.probe))}")
            out.print(f"            A {escape(printable(difference.a))}")
            out.print(f"            B {escape(printable(difference.b))}")
        if len(kind) > _SHOWN:
            out.print(f"        and {len(kind) - _SHOWN} more")
