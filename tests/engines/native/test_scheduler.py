"""Laws of the scheduler, driven without a model.

- A step never exceeds its token budget, and decodes come first, one token each.
- Every request computes each of its positions exactly once, unless it is preempted.
- While there is work, a plan is never empty.
- Requests run in order of (priority, arrival).
- A short prompt does not wait until a long one is computed, and the long one keeps half of each step.
- All blocks are free once every request has ended.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.scheduling.scheduler import Scheduler, StepPlan
from plumbline.engines.request import RequestState
from plumbline.port.engine import GenerateRequest, SamplingParams

MAX_LEN = 64
# (prompt tokens, output tokens, priority) of a request
sizes = st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2))
workloads = st.lists(sizes, min_size=1, max_size=8)
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
    number: int, prompt: int, output: int, priority: int, max_model_len: int = MAX_LEN
) -> RequestState:
    return RequestState(
        GenerateRequest(
            request_id=str(number),
            prompt_token_ids=list(range(number * 100, number * 100 + prompt)),
            sampling=SamplingParams(max_tokens=output),
            priority=priority,
        ),
        arrival=number,
        eos_token_ids=frozenset(),
        max_model_len=max_model_len,
    )


def finish_step(scheduler: Scheduler, plan: StepPlan) -> None:
    """Do what the engine core does with a plan: record computed tokens, append draws, remove ended requests."""
    for entry in plan.entries:
        scheduler.advance(entry)
        if entry.draws:
            entry.state.append(7)
            if entry.state.finish_reason is not None:
                scheduler.remove(entry.state)
    scheduler.check_integrity()


@given(configs, workloads)
def test_a_step_keeps_its_budget_and_begins_with_decodes(
    config: EngineConfig, workload: list[tuple[int, int, int]]
) -> None:
    scheduler = Scheduler(config)
    for number, size in enumerate(workload):
        scheduler.add(request(number, *size))
    while scheduler.has_work:
        plan = scheduler.plan()

        assert plan.entries, "a plan with work left is never empty"
        assert plan.num_tokens == sum(entry.count for entry in plan.entries) <= config.max_num_batched_tokens
        assert all(entry.count == 1 and entry.draws for entry in plan.entries[: plan.num_decodes])
        assert len({id(entry.state) for entry in plan.entries}) == len(plan.entries) <= config.max_num_seqs
        finish_step(scheduler, plan)
    assert scheduler.pool.num_used == 0


@given(configs, workloads)
def test_every_position_is_computed_once_unless_preempted(
    config: EngineConfig, workload: list[tuple[int, int, int]]
) -> None:
    scheduler = Scheduler(config)
    states = [request(number, *size) for number, size in enumerate(workload)]
    for state in states:
        scheduler.add(state)
    computed: dict[str, int] = {}
    while scheduler.has_work:
        plan = scheduler.plan()
        for state in plan.preempted:
            computed.pop(state.request.request_id, None)
        for entry in plan.entries:
            name = entry.state.request.request_id
            assert entry.start == computed.get(name, entry.state.num_cached_tokens or entry.start)
            computed[name] = entry.start + entry.count
        finish_step(scheduler, plan)
    for state in states:
        # The last token is drawn, and not computed any more.
        assert computed[state.request.request_id] == state.num_tokens - 1


@given(
    longest=st.integers(300, 1000),
    shorts=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 64)), min_size=1, max_size=10),
)
def test_a_short_prompt_does_not_wait_for_a_long_one_which_keeps_half_of_each_step(
    longest: int, shorts: list[tuple[int, int]]
) -> None:
    config = EngineConfig(max_model_len=1024, num_blocks=512, max_num_seqs=64, max_num_batched_tokens=128)
    scheduler = Scheduler(config)
    long = request(0, longest, 1, 0, 1024)
    scheduler.add(long)
    steps, begun, ended = 0, {}, {}
    while scheduler.has_work:
        for number, (at, prompt) in enumerate(shorts, 1):
            if at == steps:
                begun[number] = steps
                scheduler.add(request(number, prompt, 1, 0, 1024))
        plan = scheduler.plan()
        of_long = sum(entry.count for entry in plan.entries if entry.state is long)
        left = 0 if long.finish_reason else longest - long.num_computed_tokens
        assert of_long >= min(64, left)
        assert plan.num_tokens == 128 or not scheduler.waiting
        for entry in plan.entries:
            if entry.draws:
                ended[int(entry.state.request.request_id)] = steps
        finish_step(scheduler, plan)
        steps += 1
    # At most ten short prompts of 64 tokens are before one of them, and each step computes as many.
    assert all(ended[number] - begun[number] <= 11 for number in begun)


@given(workloads)
def test_requests_start_in_order_of_priority_and_arrival(workload: list[tuple[int, int, int]]) -> None:
    config = EngineConfig(max_model_len=MAX_LEN, num_blocks=64, max_num_seqs=1, max_num_batched_tokens=64)
    scheduler = Scheduler(config)
    states = [request(number, *size) for number, size in enumerate(workload)]
    for state in states:
        scheduler.add(state)
    started: list[RequestState] = []
    while scheduler.has_work:
        plan = scheduler.plan()
        started += [entry.state for entry in plan.entries if entry.state not in started]
        finish_step(scheduler, plan)

    assert started == sorted(states, key=lambda state: state.key)


@given(configs, workloads, st.data())
def test_a_request_can_be_removed_at_any_time(
    config: EngineConfig, workload: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    scheduler = Scheduler(config)
    states = [request(number, *size) for number, size in enumerate(workload)]
    for state in states:
        scheduler.add(state)
        for _ in range(data.draw(st.integers(0, 2))):
            if scheduler.has_work:
                finish_step(scheduler, scheduler.plan())
    for state in data.draw(st.permutations(states)):
        scheduler.remove(state)
        scheduler.check_integrity()

    assert not scheduler.has_work
    assert scheduler.pool.num_used == 0
