"""Run scenarios against a target: probe capabilities, run each scenario, repeat it if a sampled rule was broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from plumbline_conformance.client.http import conversations, exchange_of, sender
from plumbline_conformance.judge.verdicts import (
    Finding,
    Verdict,
    judge,
    judge_law,
    replaces,
    worth_repeating,
    worth_repeating_alone,
)
from plumbline_conformance.runner.budget import Budget, BudgetTracker
from plumbline_conformance.runner.mcp_server import mcp_server
from plumbline_conformance.runner.server_watch import ServerWatch
from plumbline_conformance.runner.session import DISTURBED, Probed, Session, is_doubtful, is_late
from plumbline_conformance.suite.scenario import UNKNOWN, Scenario, Target
from plumbline_conformance.transcript.exchange import Transcript

_MOST_LATE = 2
"""How many scenarios that are repeated alone may have late answers again: each may take a minute."""

__all__ = ["Finding", "Verdict", "exchange_of", "judge", "judge_law", "record", "sender"]


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
    restart_wait: float = 0.0,
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
        restart_wait: seconds to wait for a server that has died to return. If it does not, the rest is skipped.

    Raises:
        OSError: no MCP server can listen at the address that the target has for one.
    """
    tracker = BudgetTracker(budget or Budget())
    watch = ServerWatch(target.base_url, restart_wait)
    with mcp_server(target):
        async with conversations(target, patience, lambda: tracker.seconds_left) as begin:
            session = Session(target, asyncio.Semaphore(concurrency), begin, tracker, watch)
            probed = await session.probe_all(scenarios, declared or {})
            attempts = _Attempts(session, probed, trials, wanted)
            return await _Schedule(attempts, session, watch, ended).run(scenarios)


class _Attempts:
    """Run one scenario, and repeat it while it breaks a rule that depends on sampling.

    Args:
        session: sends the requests.
        probed: the capabilities of the target.
        trials: how many further attempts are allowed.
        wanted: ids of the checks that count, None for all.
    """

    def __init__(
        self, session: Session, probed: Mapping[str, Probed], trials: int, wanted: Collection[str] | None
    ) -> None:
        self._session = session
        self._probed = probed
        self._trials = trials
        self._wanted = wanted

    async def of(self, scenario: Scenario) -> Transcript:
        """Return the transcript of all attempts; it is skipped if the target lacks a capability."""
        if (seen := self._session.failed_probe(scenario)) is not None:
            return seen
        for name in scenario.needs:
            shown, lack = self._probed[name]
            if lack is not None:
                # If a budget or a busy server prevented the probe, nothing is known about the capability.
                known = not lack.startswith(UNKNOWN) and name not in self._session.stopped
                lacks = name if known else ""
                return Transcript(scenario=scenario.id, exchanges=shown, skipped=lack, lacks=lacks)
        return await self._repeated(scenario, await self._session.scenario(scenario))

    def is_undecided(self, seen: Transcript) -> bool:
        """Return whether a scenario is worth repeating while nothing else runs."""
        if seen.skipped is not None or seen.died is not None or seen.defect:
            return False
        found = worth_repeating_alone(seen, late=any(map(is_late, seen.exchanges)))
        return self._counts(found)

    def _counts(self, checks: Collection[str]) -> bool:
        return any(self._wanted is None or name in self._wanted for name in checks)

    async def _repeated(self, scenario: Scenario, seen: Transcript) -> Transcript:
        if seen.died is not None or not self._counts(worth_repeating(seen)):
            return seen
        for _ in range(self._trials):
            attempt = await self._session.scenario(scenario)
            if attempt.died is not None:
                return attempt
            if attempt.skipped is not None:
                break
            seen = msgspec.structs.replace(seen, again=[*seen.again, attempt.exchanges])
        return seen


class _Schedule:
    """Run scenarios concurrently, and one at a time to find the request that kills the server.

    Args:
        attempts: runs one scenario.
        session: finds out whether the server still serves.
        watch: notices that the server died.
        ended: called with each transcript as soon as it is final.
    """

    def __init__(
        self,
        attempts: _Attempts,
        session: Session,
        watch: ServerWatch,
        ended: Callable[[Transcript], None] | None,
    ) -> None:
        self._attempts = attempts
        self._session = session
        self._watch = watch
        self._ended = ended
        self._done: dict[str, Transcript] = {}
        self._late: list[Transcript] = []
        """Transcripts with an answer that did not end in time, or a 503: asked for alone, it may come yet."""
        self._undecided: list[Transcript] = []
        """Transcripts whose answers may be unsteady or late because of the requests of other scenarios."""
        self._disturbed: list[Scenario] = []
        """The scenarios to repeat, because the server died of a request that is not identified yet."""
        self._suspected: dict[str, Transcript] = {}
        """The transcripts of scenarios with a request in flight when the server died, if there were several."""

    async def run(self, scenarios: Sequence[Scenario]) -> list[Transcript]:
        """Run all scenarios; hostile requests come last and alone, and those that may kill the server after them."""
        await asyncio.gather(*(self._beside_others(one) for one in scenarios if not one.hostile))
        await self._repeat_disturbed()
        await self._settle_late()
        await self._repeat_undecided({one.id: one for one in scenarios})
        for scenario in sorted(scenarios, key=lambda one: one.lethal):
            if scenario.hostile:
                seen = await self._session.survived(await self._attempts.of(scenario))
                self._end(seen if seen.died is not None else await self._session.insisted(seen))
        return [self._done[scenario.id] for scenario in scenarios]

    async def _beside_others(self, scenario: Scenario) -> None:
        seen = await self._attempts.of(scenario)
        if seen.skipped != DISTURBED and (not seen.beside or self._watch.over):
            self._end_unless_doubtful(seen)
            return
        self._disturbed.append(scenario)
        if seen.beside:
            self._suspected[scenario.id] = seen

    async def _repeat_disturbed(self) -> None:
        """Repeat one scenario at a time; if the server dies of one of them, the other suspects are innocent."""
        repeated = [(scenario, await self._attempts.of(scenario)) for scenario in self._disturbed]
        if any(seen.died is not None for _, seen in repeated):
            self._suspected.clear()
        for scenario, seen in repeated:
            self._end_unless_doubtful(self._suspected.get(scenario.id, seen))

    async def _settle_late(self) -> None:
        """Find out whether the server answers nothing any more, or some requests never."""
        mute = await self._session.silenced(self._late)
        for seen in self._late:
            if mute is not None and mute.scenario == seen.scenario:
                self._end(mute)
                continue
            found = await self._session.insisted(seen)
            if found is seen and mute is None and self._attempts.is_undecided(seen):
                self._undecided.append(seen)
            else:
                self._end(found)

    async def _repeat_undecided(self, scenarios: Mapping[str, Scenario]) -> None:
        """Repeat one scenario at a time; the first transcript stays if the second has no verdict or loses a fault."""
        late = 0
        for seen in self._undecided:
            if late < _MOST_LATE and not self._watch.over:
                alone = await self._attempts.of(scenarios[seen.scenario])
                late += any(map(is_late, alone.exchanges))
                decided = alone.skipped is None and not self._attempts.is_undecided(alone)
                seen = alone if decided and replaces(alone, seen) else seen
            self._end(seen)

    def _end_unless_doubtful(self, seen: Transcript) -> None:
        if seen.died is None and any(map(is_doubtful, seen.exchanges)):
            self._late.append(seen)
        elif self._attempts.is_undecided(seen):
            self._undecided.append(seen)
        else:
            self._end(seen)

    def _end(self, seen: Transcript) -> None:
        self._done[seen.scenario] = seen
        if self._ended is not None:
            self._ended(seen)
