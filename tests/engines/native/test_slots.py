"""Laws of slots.

- Requests with slots have different ones, and freed slots are reused.
- The staged inputs of a step are those that the requests' own tokens and block tables give.
"""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.scheduling.scheduler import Scheduled, StepPlan
from plumbline.engines.native.slots import Slots
from plumbline.engines.request import RequestState
from plumbline.port.engine import GenerateRequest, SamplingParams

SIZE = 4
CONFIG = EngineConfig(max_model_len=64, block_size=SIZE, num_blocks=64, max_num_seqs=6)
# (tokens of a sequence, tokens computed before this step)
sequences = st.integers(2, 60).flatmap(lambda length: st.tuples(st.just(length), st.integers(0, length - 1)))


def state_of(number: int, length: int) -> RequestState:
    state = RequestState(
        GenerateRequest(
            request_id=str(number),
            prompt_token_ids=[number * 100 + position for position in range(length)],
            sampling=SamplingParams(temperature=number / 8, top_k=number, seed=number),
        ),
        arrival=number,
        eos_token_ids=frozenset(),
        max_model_len=64,
    )
    state.block_ids = [(number * 17 + place) % 64 for place in range(-(-length // SIZE))]
    return state


@given(st.lists(st.booleans(), max_size=30))
def test_no_two_requests_share_a_slot(operations: list[bool]) -> None:
    slots = Slots(CONFIG, torch.device("cpu"))
    running: list[RequestState] = []
    for number, admits in enumerate(operations):
        if admits and len(running) < CONFIG.max_num_seqs:
            state = state_of(number, 3)
            slots.assign(state)
            running.append(state)
        elif running:
            slots.release(running.pop(0))
        taken = [state.slot for state in running]
        assert len(set(taken)) == len(taken)
        assert all(0 <= slot < CONFIG.max_num_seqs for slot in taken)
        assert [slots.seed[slot] for slot in taken] == [state.seed for state in running]


@given(st.lists(sequences, min_size=1, max_size=6))
def test_staged_inputs_are_those_of_the_requests(lengths: list[tuple[int, int]]) -> None:
    slots = Slots(CONFIG, torch.device("cpu"))
    states = [state_of(number, length) for number, (length, _) in enumerate(lengths)]
    entries = [
        Scheduled(state, computed, length - computed, draws=True)
        for state, (length, computed) in zip(states, lengths, strict=True)
    ]
    entries.sort(key=lambda entry: entry.count != 1)  # decodes first
    for state in states:
        slots.assign(state)
    num_decodes = sum(entry.count == 1 for entry in entries)
    inputs = slots.stage(StepPlan(entries, num_decodes, sum(entry.count for entry in entries)))

    tokens = [token for e in entries for token in e.state.token_ids[e.start : e.start + e.count]]
    positions = [p for e in entries for p in range(e.start, e.start + e.count)]
    mapping = [
        e.state.block_ids[p // SIZE] * SIZE + p % SIZE
        for e in entries
        for p in range(e.start, e.start + e.count)
    ]
    assert inputs.token_ids.tolist() == tokens
    assert inputs.batch.positions.tolist() == positions
    assert inputs.batch.slot_mapping.tolist() == mapping
    assert inputs.batch.seq_lens.tolist() == [len(e.state.token_ids) for e in entries]
    assert inputs.batch.query_start_loc.tolist() == [0, *np.cumsum([e.count for e in entries]).tolist()]
    # Every entry reaches the end of its sequence here, so its last row draws, and no other result is wanted.
    last = (np.cumsum([e.count for e in entries]) - 1).tolist()
    rows = list(range(len(tokens))) if inputs.selection is None else inputs.selection.rows.tolist()
    assert rows == last
    assert inputs.draw_rows.tolist() == list(range(len(entries)))
    if inputs.selection is not None:
        chosen = inputs.selection.batch
        assert chosen.positions.tolist() == [len(e.state.token_ids) - 1 for e in entries]
        assert chosen.seq_lens.tolist() == inputs.batch.seq_lens.tolist()
        assert chosen.query_start_loc.tolist() == list(range(len(entries) + 1))
        assert chosen.num_decodes == len(entries)
    assert inputs.draw_states == [e.state for e in entries]
    for entry, row in zip(entries, inputs.batch.block_tables.tolist(), strict=True):
        used = entry.state.block_ids
        assert row[: len(used)] == used
        assert not any(row[len(used) :])
