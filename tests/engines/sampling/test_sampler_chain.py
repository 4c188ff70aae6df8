"""Laws of sampler chains.

- Each sampler keeps the tokens that its definition keeps, computed one token at a time.
- Values that turn the samplers off change no draw.
- A chain keeps at least one token, and only tokens that were allowed.
- A sampler that is not in the order does not run, and the order matters.
- The state (counts, DRY, Mirostat) is a function of the tokens and the filtered logits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.weights.reference_samplers import CUTS, dry_penalties, mirostat_kept, softmax, tempered

from plumbline.engines.filters.chain import ChainSampler
from plumbline.port.engine import SAMPLER_ORDER, Dry, Mirostat, SamplerChain, SamplingParams
from plumbline_kernels.sampling import sample

VOCAB = 14
values = st.integers(-40, 40).map(lambda value: value / 8)
rows = st.lists(st.one_of(values, st.just(-math.inf)), min_size=VOCAB, max_size=VOCAB).filter(
    lambda row: max(row) > -math.inf
)
shares = st.integers(1, 19).map(lambda value: value / 20)
PARAMETERS = {
    "typ_p": ("typical_p", shares),
    "tfs": ("tfs", shares),
    "top_a": ("top_a", shares),
    "top_n_sigma": ("top_n_sigma", st.integers(1, 30).map(lambda value: value / 10)),
    "top_k": ("top_k", st.integers(1, VOCAB - 1)),
    "top_p": ("top_p", shares),
    "min_p": ("min_p", shares),
    "xtc": ("xtc_threshold", shares),
}
SLACK = 1e-7


def chain(
    tokens: list[int] | None = None, *, num_prompt: int = 1, seed: int = 5, **options: Any
) -> ChainSampler:
    usual = {name: options.pop(name) for name in list(options) if name in SamplingParams.__struct_fields__}
    params = SamplingParams(chain=SamplerChain(**options), **usual)
    return ChainSampler(params, [0] if tokens is None else tokens, num_prompt, seed)


def filtered(sampler: ChainSampler, row: list[float], position: int = 3) -> dict[int, float]:
    found = sampler.filter(torch.tensor(row, dtype=torch.float32), position).tolist()
    return {token: value for token, value in enumerate(found) if value > -math.inf}


def given_logits(row: list[float]) -> dict[int, float]:
    return {token: value for token, value in enumerate(row) if value > -math.inf}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
@given(data=st.data(), row=rows)
def test_a_cut_keeps_what_its_definition_keeps(name: str, data: st.DataObject, row: list[float]) -> None:
    field, strategy = PARAMETERS[name]
    value = data.draw(strategy)
    always: dict[str, Any] = {"xtc_probability": 1.0} if name == "xtc" else {}
    kept = filtered(chain(order=(name,), **always, **dict[str, Any]({field: value})), row)
    logits = given_logits(row)
    sets = [CUTS[name](logits, value, slack) for slack in (-SLACK, 0.0, SLACK)]

    assert set.intersection(*sets) <= kept.keys() <= set.union(*sets)
    assert kept
    assert all(kept[token] == pytest.approx(logits[token]) for token in kept)


@given(rows, st.integers(0, 30), st.integers(0, 20), st.integers(1, 40))
def test_the_temperature_moves_with_the_entropy(
    row: list[float], temperature: int, spread: int, exponent: int
) -> None:
    shape = temperature / 10, spread / 10, exponent / 10
    sampler = chain(
        order=("temperature",), temperature=shape[0], dynatemp_range=shape[1], dynatemp_exponent=shape[2]
    )
    expected = softmax(tempered(given_logits(row), *shape))
    found = softmax(filtered(sampler, row))
    for token in expected.keys() | found.keys():
        assert found.get(token, 0.0) == pytest.approx(expected.get(token, 0.0), abs=1e-5)


@given(rows, st.integers(0, 2**62), st.integers(0, 10), st.sampled_from([0.0, 0.4, 1.0, 1.7]), shares)
def test_neutral_values_change_no_draw(
    row: list[float], seed: int, top_k: int, temperature: float, min_p: float
) -> None:
    logits = torch.tensor([row], dtype=torch.float32)
    sampler = chain(
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        min_p=min_p,
        dry=Dry(multiplier=0.0),
        xtc_threshold=0.3,
        dynatemp_exponent=2.0,
    )

    def drawn(logits: torch.Tensor, temperature: float, top_k: int, min_p: float) -> int:
        return int(
            sample(
                logits,
                torch.tensor([temperature]),
                torch.tensor([top_k], dtype=torch.int32),
                torch.tensor([1.0]),
                torch.tensor([min_p]),
                torch.tensor([seed]),
                torch.tensor([9]),
            )
        )

    through_chain = sampler.filter(logits[0], 9).unsqueeze(0)
    assert drawn(through_chain, 1.0, 0, 0.0) == drawn(logits, temperature, top_k, min_p)


@given(rows, st.permutations(SAMPLER_ORDER), st.data())
def test_any_chain_keeps_some_of_the_allowed_tokens(
    row: list[float], order: list[str], data: st.DataObject
) -> None:
    options: dict[str, Any] = {field: data.draw(strategy) for field, strategy in PARAMETERS.values()}
    sampler = chain(
        [1, 2, 1, 2, 1],
        order=tuple(order),
        xtc_probability=1.0,
        dry=Dry(multiplier=2.0),
        repetition_penalty=1.5,
        temperature=0.8,
        **options,
    )
    kept = filtered(sampler, row)
    assert kept
    assert kept.keys() <= given_logits(row).keys()
    assert all(math.isfinite(value) for value in kept.values())


def test_a_sampler_out_of_the_order_does_not_run() -> None:
    row = [float(-token) for token in range(VOCAB)]
    assert len(filtered(chain(order=(), top_k=1, temperature=0.0, typical_p=0.1), row)) == VOCAB
    assert len(filtered(chain(order=("top_k",), top_k=3, temperature=0.0), row)) == 3


def test_the_order_matters() -> None:
    """At temperature 3 more tokens are within a tenth of the best one."""
    row = [float(-token) for token in range(VOCAB)]
    first = filtered(chain(order=("temperature", "min_p"), temperature=3.0, min_p=0.1), row)
    last = filtered(chain(order=("min_p", "temperature"), temperature=3.0, min_p=0.1), row)
    assert len(first) > len(last)


@given(
    rows,
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    st.lists(st.integers(0, VOCAB - 1), max_size=8),
    st.integers(-1, 6),
)
def test_penalties_look_at_the_last_tokens(
    row: list[float], prompt: list[int], output: list[int], last_n: int
) -> None:
    """Whatever part of the output came before the first draw."""
    shape: dict[str, Any] = {
        "order": ("penalties",),
        "repeat_last_n": last_n,
        "repetition_penalty": 2.0,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
    }
    for early in (0, len(output) // 2, len(output)):
        tokens = prompt + output[:early]
        sampler = chain(tokens, num_prompt=len(prompt), **shape)
        filtered(sampler, row)
        for token in output[early:]:
            tokens.append(token)
            sampler.accept(token)
        found = filtered(sampler, row)
        everything = prompt + output
        window = everything if last_n < 0 else everything[-last_n:] if last_n else []
        for token, value in given_logits(row).items():
            if token in window:
                value = value / 2 if value > 0 else value * 2
            value -= 0.5 * output.count(token) + 0.25 * (token in output)
            assert found[token] == pytest.approx(value, abs=1e-5)


@given(rows, st.lists(st.integers(0, 3), min_size=1, max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_dry_subtracts_its_penalties(row: list[float], prompt: list[int], output: list[int]) -> None:
    tokens = list(prompt)
    sampler = chain(tokens, num_prompt=len(prompt), order=("dry",), dry=Dry(multiplier=0.5))
    for token in output:
        tokens.append(token)
        sampler.accept(token)
    expected = dry_penalties(tokens, multiplier=0.5, base=1.75, allowed_length=2, window=len(tokens))
    found = filtered(sampler, row)
    for token, value in given_logits(row).items():
        assert found[token] == pytest.approx(value - expected.get(token, 0.0), abs=1e-4)


def test_xtc_runs_as_often_as_its_chance_and_depends_on_seed_and_position_only() -> None:
    row = [0.0] * 2 + [-0.5] + [-9.0] * (VOCAB - 3)
    sampler = chain(order=("xtc",), xtc_probability=0.3, xtc_threshold=0.1)
    runs = [len(filtered(sampler, row, position)) < VOCAB for position in range(1000)]
    again = chain(order=("xtc",), xtc_probability=0.3, xtc_threshold=0.1)
    assert [len(filtered(again, row, position)) < VOCAB for position in reversed(range(1000))] == runs[::-1]
    assert 0.25 < np.mean(runs) < 0.35
    other = chain(order=("xtc",), xtc_probability=0.3, xtc_threshold=0.1, seed=6)
    assert [len(filtered(other, row, position)) < VOCAB for position in range(1000)] != runs


@given(
    st.lists(st.lists(values, min_size=VOCAB, max_size=VOCAB), min_size=1, max_size=6),
    st.sampled_from([1, 2]),
    st.integers(0, 40),
    st.integers(0, 10),
    st.data(),
)
def test_mirostat_cuts_at_a_mu_that_follows_the_surprise(
    steps: list[list[float]], version: Any, tau: int, eta: int, data: st.DataObject
) -> None:
    sampler = chain(order=(), mirostat=Mirostat(version=version, tau=tau / 10, eta=eta / 10))
    mu = 2 * tau / 10
    for row in steps:
        logits = torch.tensor(row, dtype=torch.float32)
        found = sampler.filter(logits, 0)
        kept = {token: value for token, value in enumerate(found.tolist()) if value > -math.inf}
        sets = [mirostat_kept(given_logits(row), version, mu, VOCAB, slack) for slack in (-SLACK, 0.0, SLACK)]
        assert kept
        if len(set(row)) > 1:
            assert set.intersection(*sets) <= kept.keys() <= set.union(*sets)
        token = data.draw(st.sampled_from(sorted(kept)))
        sampler.observe(found, token)
        mu -= eta / 10 * (-math.log2(softmax(kept)[token]) - tau / 10)
