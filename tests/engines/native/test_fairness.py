"""Laws of sharing places among clients.

- A client that runs nothing gets a place as soon as another one has two.
- No request is preempted to and fro: every workload of several clients ends.
- A client alone has every place, in order of arrival.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.scheduling.scheduler import Scheduler, StepPlan
from plumbline.engines.request import RequestState
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


def request(number: int, client: str, prompt: int, output: int, priority: int = 0) -> RequestState:
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
        max_model_len=MAX_LEN,
    )


def finish_step(scheduler: Scheduler, plan: StepPlan) -> None:
    for entry in plan.entries:
        scheduler.advance(entry)
        if entry.draws:
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
