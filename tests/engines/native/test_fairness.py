"""Laws of sharing places among clients.

- A client that runs nothing gets a place as soon as another one has two.
- Of k clients at s places, whatever each of them asks for, none is without a place for longer than k/s quanta.
- No request is preempted to and fro: every workload of several clients ends.
- A client alone has every place, in order of arrival.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.laws import EXPLORED

from plumbline.engines.fairness import QUANTUM, last_of_most, surplus
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.scheduling.scheduler import Scheduler, StepPlan
from plumbline.engines.request import LateMask, RequestState
from plumbline.engines.threaded import request_queues
from plumbline.port.engine import GenerateRequest, SamplingParams

MAX_LEN = 64
clients = st.sampled_from(["a", "b", "c"])
workloads = st.lists(
    st.tuples(clients, st.integers(1, 40), st.integers(1, 12), st.integers(0, 1)), min_size=1, max_size=10
)
configs = st.builds(
    EngineConfig,
    max_model_len=st.just(MAX_LEN),
    block_size=st.sampled_from([4, 16]),
    num_blocks=st.integers(16, 40),
    max_num_seqs=st.integers(1, 4),
    max_num_batched_tokens=st.integers(4, 48),
    enable_prefix_caching=st.booleans(),
)


def request(
    number: int, client: str, prompt: int, output: int, priority: int = 0, *, max_len: int = MAX_LEN
) -> RequestState:
    return RequestState(
        GenerateRequest(
            request_id=str(number),
            prompt_token_ids=list(range(number * 100, number * 100 + prompt)),
            sampling=SamplingParams(max_tokens=output),
            priority=priority,
            client=client,
        ),
        arrival=number,
        eos_token_ids=frozenset(),
        max_model_len=max_len,
    )


def finish_step(scheduler: Scheduler, plan: StepPlan) -> None:
    for entry in plan.entries:
        scheduler.advance(entry)
        if entry.draws:
            entry.state.drew = entry.state.drew or request_queues.time.perf_counter()  # type: ignore[attr-defined]
            entry.state.append(7)
            if entry.state.finish_reason is not None:
                scheduler.remove(entry.state)
    scheduler.check_integrity()


@given(configs, workloads)
def test_every_workload_of_several_clients_ends(
    config: EngineConfig, workload: list[tuple[str, int, int, int]]
) -> None:
    scheduler = Scheduler(config)
    states = [request(number, *facts) for number, facts in enumerate(workload)]
    steps = 0
    for state in states:
        scheduler.add(state)
    while scheduler.has_work:
        plan = scheduler.plan()
        assert plan.entries
        finish_step(scheduler, plan)
        steps += 1
        assert steps < 2_000
    assert all(
        state.num_output_tokens == wanted for state, (_, _, wanted, _) in zip(states, workload, strict=True)
    )
    assert scheduler.pool.num_used == 0


@given(st.integers(2, 4), st.integers(2, 8), st.integers(1, 20))
def test_a_client_that_runs_nothing_gets_a_place_at_once(places: int, flood: int, steps: int) -> None:
    config = EngineConfig(
        max_model_len=MAX_LEN, num_blocks=64, max_num_seqs=places, max_num_batched_tokens=64
    )
    scheduler = Scheduler(config)
    for number in range(flood):
        scheduler.add(request(number, "greedy", 4, 50))
    for _ in range(steps):
        finish_step(scheduler, scheduler.plan())
    late = request(flood, "modest", 4, 50)
    scheduler.add(late)
    for _ in range(2):
        finish_step(scheduler, scheduler.plan())
    assert late in scheduler.running
    assert len(scheduler.running) == min(places, flood + 1)


def test_a_client_with_its_share_of_blocks_leaves_some_to_others() -> None:
    """Blocks, and not places, are short: four requests of one client fill the pool."""
    config = EngineConfig(
        max_model_len=MAX_LEN, block_size=4, num_blocks=40, max_num_seqs=16, max_num_batched_tokens=256
    )
    scheduler = Scheduler(config)
    for number in range(12):
        scheduler.add(request(number, "greedy", 30, 30))
    for _ in range(3):
        finish_step(scheduler, scheduler.plan())
    late = request(12, "modest", 30, 30)
    scheduler.add(late)
    for _ in range(4):
        finish_step(scheduler, scheduler.plan())
    assert late in scheduler.running


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=8))
def test_the_requests_of_one_client_start_in_order_and_fill_every_place(sizes: list[tuple[int, int]]) -> None:
    config = EngineConfig(max_model_len=MAX_LEN, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=256)
    scheduler = Scheduler(config)
    states = [request(number, "only", *size) for number, size in enumerate(sizes)]
    for state in states:
        scheduler.add(state)
    assert [entry.state for entry in scheduler.plan().entries] == states


@contextmanager
def clock(now: list[float]) -> Iterator[None]:
    """Let requests and queues read `now[0]` as the time."""
    module = SimpleNamespace(perf_counter=lambda: now[0])
    with patch("plumbline.engines.request.time", module), patch.object(request_queues, "time", module):
        yield


STEP = QUANTUM / 20
"""Seconds of a step on the clock of the machine."""


class Crowd(RuleBasedStateMachine):
    """Two clients that flood, and others that come and go, on a clock that each step moves."""

    @initialize(places=st.integers(1, 3))
    def begin(self, places: int) -> None:
        self.now = [1.0]
        self.places = places
        self.numbers = 0
        self.lacks: dict[str, float] = {}
        """Since when each client waits without a place."""
        config = EngineConfig(
            max_model_len=4_096, num_blocks=2_000, max_num_seqs=places, max_num_batched_tokens=64
        )
        self.scheduler = Scheduler(config)
        self.most = 0
        """Clients that were there at a time, since the last moment without any."""
        self.ask("a", 8, 1_000)
        self.ask("b", 8, 1_000)

    @rule(client=st.sampled_from("abcd"), count=st.integers(1, 8), output=st.sampled_from([1, 30, 1_000]))
    def ask(self, client: str, count: int, output: int) -> None:
        with clock(self.now):
            for _ in range(count):
                self.numbers += 1
                self.scheduler.add(request(self.numbers, client, 4, output, max_len=4_096))

    @rule(client=st.sampled_from("cd"))
    def leave(self, client: str) -> None:
        with clock(self.now):
            for state in (*self.scheduler.waiting, *self.scheduler.running):
                if state.request.client == client:
                    self.scheduler.remove(state)

    @rule(client=st.sampled_from("abcd"), number=st.integers(0, 3))
    def stop_reading(self, client: str, number: int) -> None:
        """A client that does not read its stream gives up its place for a while."""
        with clock(self.now):
            running = [state for state in self.scheduler.running if state.request.client == client]
            if running:
                state = running[number % len(running)]
                self.scheduler.pause(state)
                self.scheduler.resume(state)

    @rule(steps=st.sampled_from([1, 10, 100]))
    def work(self, steps: int) -> None:
        for _ in range(steps):
            with clock(self.now):
                if self.scheduler.has_work:
                    finish_step(self.scheduler, self.scheduler.plan())
            self.now[0] += STEP
            self.look()

    def teardown(self) -> None:
        """Go on for as long as a round of all clients may take."""
        if hasattr(self, "scheduler"):
            self.work(150)

    @invariant()
    def look(self) -> None:
        """None waits for longer than its turn takes to come round."""
        if not hasattr(self, "scheduler"):
            return
        has = {state.request.client for state in self.scheduler.running}
        wants = {state.request.client for state in self.scheduler.waiting} - has
        self.lacks = {client: self.lacks.get(client, self.now[0]) for client in wants}
        self.most = max(self.most, len(has | wants)) if has | wants else 0
        round_of_all = math.ceil(self.most / self.places) * (QUANTUM + (self.places + 2) * STEP)
        for client, since in self.lacks.items():
            assert self.now[0] - since <= round_of_all, (client, self.most, self.places)


def test_no_client_waits_for_longer_than_the_round_of_all() -> None:
    chosen = settings(
        phases=[Phase.generate], max_examples=EXPLORED or 6, stateful_step_count=10, derandomize=not EXPLORED
    )
    run_state_machine_as_test(Crowd, settings=chosen)


def test_of_several_clients_at_one_place_each_has_its_part() -> None:
    """A flood that came first is not served whole before the others."""
    config = EngineConfig(max_model_len=4_096, num_blocks=1_000, max_num_seqs=1, max_num_batched_tokens=64)
    scheduler, now = Scheduler(config), [1.0]
    drawn = dict.fromkeys("abc", 0)
    with clock(now):
        for number in range(30):
            scheduler.add(request(number, "abc"[number // 10], 4, 1_000, max_len=4_096))
        for _ in range(30 * 20):
            plan = scheduler.plan()
            for entry in plan.entries:
                drawn[entry.state.request.client] += entry.draws
            finish_step(scheduler, plan)
            now[0] += STEP
    assert max(drawn.values()) - min(drawn.values()) <= 2 * QUANTUM / STEP


@given(
    st.lists(st.tuples(clients, st.integers(0, 2)), min_size=1, max_size=8), st.integers(0, 2), st.booleans()
)
@example([("a", 0), ("a", 0), ("b", 1)], 1, True)
def test_a_client_without_a_place_gets_one_of_its_priority(
    workload: list[tuple[str, int]], priority: int, is_over: bool
) -> None:
    """Whoever holds places of an earlier priority, however many."""
    running = [request(number, client, 4, 8, each) for number, (client, each) in enumerate(workload)]
    running.sort(key=lambda state: state.key)
    for state in running:
        state.began, state.drew = 1.0, 1.1
    now = 1.0 + QUANTUM * (2 if is_over else 0.5)
    left = surplus(running, request(len(running), "next", 4, 8, priority), now)
    counts = Counter(state.request.client for state in running)
    able = [state for state in running if state.request.priority >= priority]
    has_several = any(counts[state.request.client] > 1 for state in able)
    assert (left is not None) == bool(able and (is_over or has_several))
    assert left is None or left in able


def test_no_place_goes_to_and_fro_while_long_prompts_wait_for_each_other() -> None:
    """Short prompts of a flood overtake a long one that waits for another long one; none leaves for it before."""
    config = EngineConfig(max_model_len=4_096, num_blocks=2_000, max_num_seqs=4, max_num_batched_tokens=64)
    scheduler, now = Scheduler(config), [1.0]
    with clock(now):
        computed, waits = (request(number, "cb"[number], 2_000, 10, max_len=4_096) for number in range(2))
        scheduler.add(computed)
        for number in range(2, 30):
            scheduler.add(request(number, "flood", 20, 100, max_len=4_096))
        finish_step(scheduler, scheduler.plan())
        scheduler.add(waits)
        while not computed.num_output_tokens:
            finish_step(scheduler, scheduler.plan())
        assert scheduler.num_preemptions == 0
        for _ in range(3):
            finish_step(scheduler, scheduler.plan())
        assert waits in scheduler.running


def test_a_request_without_its_mask_keeps_no_place_from_others() -> None:
    """It was preempted while its next mask was computed, and can take no place before it is known."""
    config = EngineConfig(max_model_len=MAX_LEN, num_blocks=64, max_num_seqs=1, max_num_batched_tokens=64)
    scheduler, now = Scheduler(config), [1.0]
    with clock(now):
        late, first, second = (request(number, "abc"[number], 4, 50) for number in range(3))
        late.late_mask = LateMask()
        scheduler.add(late)
        scheduler.add(first)
        finish_step(scheduler, scheduler.plan())
        assert scheduler.running == [first]
        now[0] += 2 * QUANTUM
        finish_step(scheduler, scheduler.plan())
        assert scheduler.running == [first]
        scheduler.add(second)
        for _ in range(2):
            finish_step(scheduler, scheduler.plan())
        assert scheduler.running == [second]


@given(st.lists(st.tuples(clients, st.integers(0, 1)), min_size=1, max_size=8), st.data())
def test_memory_that_is_short_is_taken_from_the_client_with_the_most(
    workload: list[tuple[str, int]], data: st.DataObject
) -> None:
    running = sorted(
        (request(number, client, 4, 8, priority) for number, (client, priority) in enumerate(workload)),
        key=lambda state: state.key,
    )
    start = data.draw(st.integers(0, len(running) - 1))
    chosen = last_of_most(running, start)
    able = [state for state in running[start:] if state.request.priority == running[-1].request.priority]
    counts = Counter(state.request.client for state in running)
    assert chosen in able
    assert counts[chosen.request.client] == max(counts[state.request.client] for state in able)
    if len(running) > 1 and len(set(counts.values())) == 1 == max(counts.values()):
        assert chosen is running[-1]
