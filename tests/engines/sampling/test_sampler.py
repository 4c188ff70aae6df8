"""Laws of the sampler: filters of one request change the draws of that request only.

- Greedy draws take the largest logit after bias, bans and penalties, as computed in plain Python.
- Banned tokens are never drawn; stop tokens are not drawn before `min_tokens`.
- A row without filters draws the same whatever the filters of other rows are.
- Logprobs are those of the logits before all filters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.slots import Slots
from plumbline.engines.request import RequestState
from plumbline.engines.sampling.sampler import Sampler
from plumbline.port.engine import GenerateRequest, SamplingParams, TokenLogprob

VOCAB = 12
CPU = torch.device("cpu")
CONFIG = EngineConfig(max_model_len=64, max_num_seqs=8)
logits_rows = st.lists(
    st.integers(-40, 40).map(lambda value: value / 8), min_size=VOCAB, max_size=VOCAB, unique=True
)
ids = st.integers(0, VOCAB - 1)
filters = st.fixed_dictionaries(
    {},
    optional={
        "logit_bias": st.dictionaries(ids, st.sampled_from([-3.0, 0.5, 4.0]), max_size=3),
        "allowed_token_ids": st.frozensets(ids, min_size=1),
        "frequency_penalty": st.sampled_from([-1.0, 0.5]),
        "presence_penalty": st.sampled_from([-1.0, 0.5]),
        "repetition_penalty": st.sampled_from([0.5, 2.0]),
    },
)


def request(number: int, prompt: list[int], output: list[int], **sampling: Any) -> RequestState:
    params = SamplingParams(**{"temperature": 0.0, "seed": number, **sampling})
    state = RequestState(
        GenerateRequest(request_id=str(number), prompt_token_ids=prompt, sampling=params),
        arrival=number,
        eos_token_ids=frozenset({1}),
        max_model_len=64,
    )
    for token in output:
        state.append(token)
    return state


def draw(rows: list[list[float]], states: list[RequestState]) -> tuple[list[int], list[TokenLogprob | None]]:
    """Admit the requests and draw once."""
    slots, sampler = Slots(CONFIG, CPU), Sampler(VOCAB, CPU)
    for state in states:
        slots.assign(state)
        sampler.admit(state)
    numbers = np.array([state.slot for state in states], dtype=np.int64)
    tokens, logprobs = sampler.draw(torch.tensor(rows), states, numbers, slots)
    return tokens.tolist(), logprobs


def expected_logits(row: list[float], state: RequestState) -> list[float]:
    """The logits after all filters, one token at a time."""
    sampling, prompt = state.sampling, state.token_ids[: state.num_prompt_tokens]
    output = state.token_ids[state.num_prompt_tokens :]
    found = []
    for token, value in enumerate(row):
        value += sampling.logit_bias.get(token, 0.0)
        if sampling.allowed_token_ids is not None and token not in sampling.allowed_token_ids:
            value = -math.inf
        if token in prompt or token in output:
            factor = sampling.repetition_penalty
            value = value / factor if value > 0 else value * factor
        value -= sampling.frequency_penalty * output.count(token)
        value -= sampling.presence_penalty * (token in output)
        found.append(value)
    return found


@given(
    logits_rows,
    st.lists(ids, min_size=1, max_size=4),
    st.lists(ids.filter(lambda i: i != 1), max_size=4),
    filters,
)
def test_a_greedy_draw_takes_the_largest_filtered_logit(
    row: list[float], prompt: list[int], output: list[int], sampling: dict[str, Any]
) -> None:
    state = request(0, prompt, output, **sampling)
    expected = expected_logits(row, state)
    (token,), _ = draw([row], [state])

    assert expected[token] == pytest.approx(max(expected))


@given(logits_rows, logits_rows, filters, st.floats(0.0, 2.0))
def test_filters_do_not_change_the_draws_of_other_requests(
    row: list[float], other: list[float], sampling: dict[str, Any], temperature: float
) -> None:
    def plain() -> RequestState:
        return request(3, [2, 5], [4], temperature=temperature, top_p=0.9)

    (alone,), _ = draw([row], [plain()])
    (beside, _), _ = draw([row, other], [plain(), request(4, [2], [3], **sampling)])

    assert beside == alone


@given(logits_rows, st.integers(0, 4), st.integers(1, 5))
def test_a_stop_token_is_not_drawn_before_min_tokens(row: list[float], done: int, minimum: int) -> None:
    row[1] = 99.0  # the end of sequence
    (token,), _ = draw([row], [request(0, [2], [3] * done, min_tokens=minimum)])

    assert (token == 1) == (done >= minimum)


@given(logits_rows, filters, st.integers(0, 5))
def test_logprobs_are_those_before_all_filters(row: list[float], sampling: dict[str, Any], top: int) -> None:
    _, (entry,) = draw([row], [request(0, [2], [3], logprobs=top, **sampling)])
    total = math.log(sum(math.exp(value) for value in row))

    assert entry is not None
    assert entry.logprob == pytest.approx(row[entry.token_id] - total, abs=1e-4)
    best = sorted(range(VOCAB), key=lambda token: -row[token])[:top]
    assert [token for token, _ in entry.top] == best
