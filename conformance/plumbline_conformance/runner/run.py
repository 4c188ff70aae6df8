"""Run scenarios against a target: probe capabilities, run each scenario, repeat it if a sampled rule was broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping, Sequence

import msgspec

from plumbline_conformance.client.http import Conversation, conversations, exchange_of, sender
from plumbline_conformance.judge.verdicts import Finding, Verdict, judge, judge_law, worth_repeating
from plumbline_conformance.runner.budget import Budget, BudgetTracker, OverBudget
from plumbline_conformance.suite.model import CAPABILITIES, UNKNOWN, Request, Scenario, Target
from plumbline_conformance.transcript.defects import traceback_of
from plumbline_conformance.transcript.model import Exchange, Transcript

__all__ = ["Finding", "Verdict", "exchange_of", "judge", "judge_law", "record", "sender"]

Steps = Generator[Request, Exchange, str | None]


async def record(
    scenarios: Sequence[Scenario],
    target: Target,
    *,
    concurrency: int = 4,
    patience: float = 60.0,
    trials: int = 0,
    budget: Budget | None = None,
    wanted: Collection[str] | None = None,
    ended: Callable[[Transcript], None] | None = None,
    declared: Mapping[str, bool] | None = None,
) -> list[Transcript]:
    """Send the requests of all scenarios; return the transcripts in the order of the scenarios.

    Args:
        scenarios: what to send.
        target: the server.
        concurrency: how many scenarios run at a time.
        patience: seconds for one exchange.
        trials: further attempts of a scenario if a check that depends on sampling finds a MUST broken.
        budget: limits of the whole run.
        wanted: ids of the checks that count, None for all; a violation of another check causes no further attempt.
        ended: called with each transcript as soon as its scenario has ended, in any order.
        declared: capabilities that the user declares as present or missing. They are not probed; scenarios that need a
            present one always run.
    """
    tracker = BudgetTracker(budget or Budget())
    async with conversations(target, patience, lambda: tracker.seconds_left) as begin:
        run = _Run(target, asyncio.Semaphore(concurrency), begin, tracker)
        names = sorted({name for scenario in scenarios for name in scenario.needs})
        probed = await asyncio.gather(*(run.about(name, declared or {}) for name in names))
        found = dict(zip(names, probed, strict=True))

        async def one(scenario: Scenario) -> Transcript:
            lacking = [name for name in scenario.needs if found[name][1] is not None]
            defect = next((run.defects[name] for name in scenario.needs if name in run.defects), "")
            if defect:
                seen = Transcript(scenario=scenario.id, exchanges=[], defect=defect)
            elif lacking:
                shown, lack = found[lacking[0]]
                # If a budget or a busy server prevented the probe, nothing is known about the capability.
                known = lack is not None and not lack.startswith(UNKNOWN) and lacking[0] not in run.stopped
                seen = Transcript(
                    scenario=scenario.id, exchanges=shown, skipped=lack, lacks=lacking[0] if known else ""
                )
            else:
                seen = await run.scenario(scenario)
                seen = await again(scenario, seen)
            if ended is not None:
                ended(seen)
            return seen

        async def again(scenario: Scenario, seen: Transcript) -> Transcript:
            broken = worth_repeating(seen)
            if not any(wanted is None or name in wanted for name in broken):
                return seen
            for _ in range(trials):
                attempt = await run.scenario(scenario)
                if attempt.skipped is not None:
                    break
                seen = msgspec.structs.replace(seen, again=[*seen.again, attempt.exchanges])
            return seen

        return list(await asyncio.gather(*(one(scenario) for scenario in scenarios)))


class _Run:
    """State that the scenarios of one run share."""

    def __init__(
        self,
        target: Target,
        gate: asyncio.Semaphore,
        begin: Callable[[], Conversation],
        tracker: BudgetTracker,
    ) -> None:
        self._target = target
        self._gate = gate
        self._begin = begin
        self._tracker = tracker
        self.stopped: set[str] = set()
        """The capabilities that were not probed because of the budget."""
        self.defects: dict[str, str] = {}
        """The capabilities whose probe failed because of a defect of the judge, with the traceback."""

    async def about(self, name: str, declared: Mapping[str, bool]) -> tuple[list[Exchange], str | None]:
        """Return the declaration of a capability, or probe it; the result is that of `probe`."""
        if name in declared:
            lack = None if declared[name] else f"declared as missing: {CAPABILITIES[name].title}"
            return [], lack
        return await self.probe(name)

    async def probe(self, name: str) -> tuple[list[Exchange], str | None]:
        """Probe a capability; return the exchanges and the reason why the target lacks it, or None if it does not."""
        try:
            async with self._gate:
                return await self._converse(CAPABILITIES[name].probe(self._target))
        except _Stopped as stopped:
            self.stopped.add(name)
            return stopped.exchanges, f"{stopped}; not probed: {CAPABILITIES[name].title}"
        except _Defect as defect:
            self.defects[name] = str(defect)
            return defect.exchanges, f"{UNKNOWN}: the judge failed"

    async def scenario(self, wanted: Scenario) -> Transcript:
        """Run a scenario once; it is skipped if the budget does not allow all of it."""
        try:
            async with self._gate:
                self._tracker.open(wanted, self._target)
                exchanges, _ = await self._converse(wanted.steps(self._target))
        except OverBudget as reason:
            return Transcript(scenario=wanted.id, exchanges=[], skipped=str(reason))
        except _Stopped as stopped:
            return Transcript(scenario=wanted.id, exchanges=stopped.exchanges, skipped=str(stopped))
        except _Defect as defect:
            return Transcript(scenario=wanted.id, exchanges=defect.exchanges, defect=str(defect))
        except Exception as error:
            return Transcript(scenario=wanted.id, exchanges=[], defect=traceback_of(error))
        return Transcript(scenario=wanted.id, exchanges=exchanges)

    async def _converse(self, steps: Steps) -> tuple[list[Exchange], str | None]:
        exchanges: list[Exchange] = []
        spent = 0
        try:
            async with self._begin() as conversation:
                try:
                    request = next(steps)
                    while True:
                        worst = self._tracker.reserve(request, spent)
                        exchanges.append(await conversation.send(request))
                        spent += self._tracker.settle(exchanges[-1], worst)
                        request = steps.send(exchanges[-1])
                except StopIteration as stop:
                    return exchanges, stop.value
        except OverBudget as reason:
            raise _Stopped(exchanges, str(reason)) from None
        except Exception as error:
            # Scenarios read answers of any shape; a defect in one of them must not end the others.
            raise _Defect(exchanges, traceback_of(error)) from error


class _Ended(Exception):  # noqa: N818 - it is a reason, not an error
    """Something ended a conversation before its last request."""

    def __init__(self, exchanges: list[Exchange], why: str) -> None:
        super().__init__(why)
        self.exchanges = exchanges


class _Stopped(_Ended):
    """The budget ended a conversation."""


class _Defect(_Ended):
    """A defect of the judge ended a conversation; the text is its traceback."""
