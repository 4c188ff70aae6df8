"""Probe capabilities, send the requests of scenarios, and record how each conversation ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from plumbline_conformance.client.busy_retry import pause_of
from plumbline_conformance.client.http import Conversation
from plumbline_conformance.runner.budget import BudgetTracker, OverBudget
from plumbline_conformance.runner.endless import is_too_long, silence_of
from plumbline_conformance.runner.preflight import simple_requests
from plumbline_conformance.runner.server_watch import Death, Flight, ServerWatch
from plumbline_conformance.suite.scenario import CAPABILITIES, DIED, UNKNOWN, Request, Scenario, Target
from plumbline_conformance.transcript.defects import traceback_of
from plumbline_conformance.transcript.exchange import CLOSED, NO_HANDSHAKE, UNABLE, Exchange, Transcript

__all__ = ["DISTURBED", "Probed", "Session", "is_doubtful", "is_late"]

Steps = Generator[Request, Exchange, str | None]
Probed = tuple[list[Exchange], str | None]
"""The exchanges of a probe, and the reason why the target lacks the capability; None if it does not."""
_GENERATING = ("/chat/completions", "/completions", "/responses", "/messages")
_LIST = Request(name="alive", path="/models", method="GET")
"""What a server must answer that has not answered any question to a model."""
_MOST_ENDLESS = 2
"""How many late answers are asked for again, and how many refusals: each may take a minute."""
_UNAVAILABLE = frozenset({503, 529})
"""Statuses of a server that is busy with everybody. With 429 it limits this client, which may have caused it."""
_PAUSE = 1.0
"""Seconds before a server that has refused a valid request is asked once more."""
DISTURBED = f"{DIED} of another request while the scenario ran"


class Session:
    """State that the scenarios of one run share."""

    def __init__(
        self,
        target: Target,
        gate: asyncio.Semaphore,
        begin: Callable[[], Conversation],
        tracker: BudgetTracker,
        watch: ServerWatch,
    ) -> None:
        self._target = target
        self._gate = gate
        self._begin = begin
        self._tracker = tracker
        self._watch = watch
        self._proof: Request | None = None
        """A request that the server has answered, and must answer again."""
        self._proven: Exchange | None = None
        """The first answer to it."""
        self._simple = simple_requests(target)
        """Requests to find a proof with, if the server has answered no request of the scenarios; each is sent once."""
        self._heard = False
        """Whether the server has answered anything."""
        self._late: dict[tuple[str, str], Request] = {}
        """The requests whose answers did not end in time, by scenario and name."""
        self._insisted: Counter[bool] = Counter()
        """Requests that were sent again alone, by whether they were late; the others were refused."""
        self._died: dict[str, Transcript] = {}
        """The transcripts of probes during which the server died, by capability."""
        self.stopped: set[str] = set()
        """The capabilities that were not probed because of the budget."""
        self.defects: dict[str, str] = {}
        """The capabilities whose probe failed because of a defect of the judge, with the traceback."""

    async def probe_all(
        self, scenarios: Sequence[Scenario], declared: Mapping[str, bool]
    ) -> dict[str, Probed]:
        """Probe each capability that the scenarios need and the user has not declared."""
        names = sorted({name for scenario in scenarios for name in scenario.needs})
        probed = await asyncio.gather(*(self._declared_or_probed(name, declared) for name in names))
        return dict(zip(names, probed, strict=True))

    async def _declared_or_probed(self, name: str, declared: Mapping[str, bool]) -> Probed:
        if name in declared:
            lack = None if declared[name] else f"declared as missing: {CAPABILITIES[name].title}"
            return [], lack
        return await self._probe(name)

    def failed_probe(self, scenario: Scenario) -> Transcript | None:
        """Return the transcript of a scenario whose capability could not be probed, or None.

        A server that died of a probe is accused of it under the first scenario that needs the capability.
        """
        for name in scenario.needs:
            if (defect := self.defects.get(name)) is not None:
                return Transcript(scenario=scenario.id, exchanges=[], defect=defect)
            if (seen := self._died.get(name)) is not None:
                accused = not seen.scenario
                seen = msgspec.structs.replace(seen, scenario=seen.scenario or scenario.id)
                self._died[name] = seen
                if accused:
                    return seen
                lack = f"{DIED} when {CAPABILITIES[name].title} was probed, in {seen.scenario}"
                return Transcript(scenario=scenario.id, exchanges=[], skipped=lack)
        return None

    async def _probe(self, name: str) -> Probed:
        try:
            async with self._gate:
                return await self._converse(CAPABILITIES[name].probe(self._target), f"the probe of {name}")
        except _Stopped as stopped:
            self.stopped.add(name)
            return stopped.exchanges, f"{stopped}; not probed: {CAPABILITIES[name].title}"
        except _Defect as defect:
            self.defects[name] = str(defect)
            return defect.exchanges, f"{UNKNOWN}: the judge failed"
        except _Died as died:
            self._died[name] = died.transcript("")
            return died.exchanges, f"{UNKNOWN}: {DIED}"
        except _Disturbed as disturbed:
            if not self._watch.over:
                return await self._probe(name)  # The number of deaths is bounded.
            return disturbed.exchanges, f"{UNKNOWN}: {self._watch.over}"

    async def scenario(self, wanted: Scenario) -> Transcript:
        """Run a scenario once; it is skipped if the budget does not allow all of it."""
        try:
            async with self._gate:
                self._tracker.open(wanted, self._target)
                exchanges, _ = await self._converse(wanted.steps(self._target), wanted.id)
        except OverBudget as reason:
            return Transcript(scenario=wanted.id, exchanges=[], skipped=str(reason))
        except _Stopped as stopped:
            return Transcript(scenario=wanted.id, exchanges=stopped.exchanges, skipped=str(stopped))
        except _Defect as defect:
            return Transcript(scenario=wanted.id, exchanges=defect.exchanges, defect=str(defect))
        except _Died as died:
            return died.transcript(wanted.id)
        except _Disturbed as disturbed:
            # Answers of a server that is dying or has lost its state are not evidence.
            return Transcript(scenario=wanted.id, exchanges=[], skipped=self._watch.over or str(disturbed))
        except Exception as error:
            return Transcript(scenario=wanted.id, exchanges=[], defect=traceback_of(error))
        return Transcript(scenario=wanted.id, exchanges=exchanges)

    async def survived(self, seen: Transcript) -> Transcript:
        """Return the transcript, with a mark if the server no longer answers what it answered before.

        The process is up but no longer serves, for example because its worker thread died. The mark is at the first
        exchange with the answer that the valid request gets now; that request or the one before it silenced the server.
        """
        if self._proof is None or self._watch.over or not seen.exchanges or seen.died is not None:
            return seen
        try:
            for _ in range(2):
                shown, _ = await self._converse(_once(self._proof), seen.scenario, insist=True)
                if _serves(shown[-1]) or shown[-1].status in (*UNABLE, 401, 403):
                    return seen
                await asyncio.sleep(_PAUSE)
        except _Died:
            return msgspec.structs.replace(seen, died=len(seen.exchanges) - 1)
        except _Ended:
            return seen
        return self._muted(seen, shown[-1])

    async def silenced(self, seen: Sequence[Transcript]) -> Transcript | None:
        """Return the first transcript with an answer that did not end in time, marked, if the server answers no more.

        A server may be slow. So it must give no answer at all, twice, to a request that it had answered in time; to a
        list of its models, if it had answered no question, though it accepts connections.
        """
        late = next((one for one in seen if any(map(is_late, one.exchanges))), None)
        if late is None or self._watch.over or not (self._heard or await self._watch.listens()):
            return None
        try:
            for _ in range(2):
                shown, _ = await self._converse(_once(self._proof or _LIST), late.scenario, insist=True)
                if shown[-1].status or not is_late(shown[-1]):
                    return None
        except _Ended:
            return None
        return self._muted(late, shown[-1])

    async def insisted(self, seen: Transcript) -> Transcript:
        """Return the transcript, with a mark at its late answer if that never ends, or at a 503 that is one again.

        The request is sent once more, alone, and then another one, whose answer shows how long tokens take.
        """
        late = next((one for one in seen.exchanges if (seen.scenario, one.name) in self._late), None)
        if late is None or self._watch.over or self._insisted[is_late(late)] >= _MOST_ENDLESS:
            return seen
        request = self._late[seen.scenario, late.name]
        try:
            if (valid := await self._found_proof(seen.scenario)) is None:
                return seen
            self._insisted[is_late(late)] += 1
            began = time.monotonic()
            [again], _ = await self._converse(_once(request), seen.scenario, insist=True)
            waited = time.monotonic() - began
            [proof], _ = await self._converse(_once(valid), seen.scenario, insist=True)
            took = self._seconds_of(proof, time.monotonic() - began - waited)
        except _Ended:
            return seen
        if not _serves(proof):
            return seen
        silence = silence_of(again, waited)
        if is_late(again) and is_too_long(silence, waited, request, proof, took):
            again.endless = silence
        elif _stays_busy(late, again) and not proof.busy:
            # A server that refused the other request at first limits the rate of all of them.
            again.unavailable = True
        elif _has_no_handshake(late) and _has_no_handshake(again):
            again.dropped = True
        elif not (again.error or "").startswith(CLOSED):
            # A server may close a WebSocket that it does not answer; a check of the scenario accuses it of this.
            return seen
        exchanges = [again if one is late else one for one in seen.exchanges]
        return msgspec.structs.replace(seen, exchanges=exchanges)

    async def _found_proof(self, scenario: str) -> Request | None:
        """Return a request that the server answers, or None.

        If the server has answered no request of the scenarios, such as those of a WebSocket that never answers, simple
        requests are sent, each once in a run.
        """
        while self._proof is None and self._simple:
            await self._converse(_once(self._simple.pop(0)), scenario, insist=True)
        return self._proof

    def _seconds_of(self, proof: Exchange, took: float) -> float:
        """Return how long a server took to generate the answer of the proof.

        A cache of whole answers repeats the first one at once, with its id: the time of the first one counts then.
        """
        first = self._proven
        if first is None or not first.frames or not _same(first, proof):
            return took
        return max(took, first.frames[-1][0])

    def _muted(self, seen: Transcript, answer: Exchange) -> Transcript:
        self._watch.silence(seen.scenario)
        alike = [place for place, one in enumerate(seen.exchanges) if _same(one, answer)]
        place = alike[0] if alike else len(seen.exchanges) - 1
        return msgspec.structs.replace(
            seen, exchanges=seen.exchanges[: place + 1], again=[], died=place, mute=answer
        )

    async def _converse(self, steps: Steps, name: str, *, insist: bool = False) -> Probed:
        exchanges: list[Exchange] = []
        flight = self._watch.begin(name)
        try:
            async with asyncio.timeout(self._tracker.timeout), self._begin() as conversation:
                if insist:
                    conversation.insist()
                return exchanges, await self._send_all(steps, exchanges, flight, conversation)
        except OverBudget as reason:
            raise _Stopped(exchanges, str(reason)) from None
        except TimeoutError:
            raise _Stopped(exchanges, self._tracker.time_is_over) from None
        except _Ended:
            raise
        except Exception as error:
            # Scenarios read answers of any shape; a defect in one of them must not end the others.
            raise _Defect(exchanges, traceback_of(error)) from error

    async def _send_all(
        self, steps: Steps, exchanges: list[Exchange], flight: Flight, conversation: Conversation
    ) -> str | None:
        """Send the requests of a conversation, append its exchanges, and return the result of its steps."""
        spent = 0
        try:
            request = next(steps)
            while True:
                if self._watch.over or flight.epoch != self._watch.epoch:
                    raise _Disturbed(exchanges, DISTURBED)
                if any(request.name == earlier.name for earlier in exchanges):
                    raise ValueError(f"two requests of {flight.scenario} have the name {request.name!r}")
                for last_try in (False, True):
                    worst = self._tracker.reserve(request, spent)
                    exchange = await self._watch.observe(flight, request, conversation.send)
                    spent += self._tracker.settle(exchange, worst)
                    await self._end_if_dead(flight, [*exchanges, exchange])
                    if not self._watch.may_drop(exchange):
                        break
                    if last_try:
                        exchange.dropped = True
                exchanges.append(exchange)
                self._heard = self._heard or exchange.status != 0
                generating = request.path in _GENERATING or not is_late(exchange)
                if is_doubtful(exchange) and generating and request.json is not None:
                    self._late.setdefault((flight.scenario, request.name), request)
                if self._proof is None and request.path in _GENERATING and _serves(exchange):
                    self._proof = request
                    self._proven = exchange
                request = steps.send(exchange)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def _end_if_dead(self, flight: Flight, exchanges: list[Exchange]) -> None:
        """Raise an exception if the server died during the last exchange, of this conversation or of another one."""
        if (death := await self._watch.death(flight)) is not None:
            guilty = death.suspects[0] is flight
            raise _Died(exchanges, death) if guilty else _Disturbed(exchanges, DISTURBED)


def is_doubtful(exchange: Exchange) -> bool:
    """Return whether a request is worth sending once more, alone: a slow or busy server would answer it then."""
    return is_late(exchange) or exchange.status in _UNAVAILABLE or _has_no_handshake(exchange)


def _stays_busy(refusal: Exchange, again: Exchange) -> bool:
    """Return whether a server is busy twice, and had the time between that its `Retry-After` asks for."""
    pause = pause_of(again, 0.0)
    waited = pause is not None and (pause <= _PAUSE or bool(again.busy))
    return waited and {refusal.status, again.status} <= _UNAVAILABLE


def _has_no_handshake(exchange: Exchange) -> bool:
    return (exchange.error or "").startswith(NO_HANDSHAKE)


def is_late(exchange: Exchange) -> bool:
    """Return whether an answer did not end in time."""
    return (exchange.error or "").startswith(("TimeoutError", "ReadTimeout", "ConnectTimeout"))


def _once(request: Request) -> Steps:
    yield request
    return None


def _serves(exchange: Exchange) -> bool:
    return exchange.status == 200 and exchange.error is None and exchange.failure is None


def _same(one: Exchange, other: Exchange) -> bool:
    return (one.status, one.body) == (other.status, other.body)


class _Ended(Exception):  # noqa: N818 - it is a reason, not an error
    """Something ended a conversation before its last request."""

    def __init__(self, exchanges: list[Exchange], why: str) -> None:
        super().__init__(why)
        self.exchanges = exchanges


class _Stopped(_Ended):
    """The budget ended a conversation."""


class _Disturbed(_Ended):
    """The server died of another conversation."""


class _Died(_Ended):
    """The server died during the last exchange of a conversation."""

    def __init__(self, exchanges: list[Exchange], death: Death) -> None:
        super().__init__(exchanges, DIED)
        self._beside = [flight.shown for flight in death.suspects[1:]]

    def transcript(self, scenario: str) -> Transcript:
        """Return the transcript of the scenario that ended here."""
        place = len(self.exchanges) - 1
        return Transcript(scenario=scenario, exchanges=self.exchanges, died=place, beside=self._beside)


class _Defect(_Ended):
    """A defect of the judge ended a conversation; the text is its traceback."""
