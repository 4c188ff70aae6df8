"""Laws of delta nets: the result is that of the definition, in any chunks, beside others, from any row."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline_kernels.attention import AttentionBatch
from plumbline_kernels.delta import (
    DeltaShape,
    causal_conv,
    delta_gates,
    delta_rule,
    gated_group_norm,
    gated_norm,
    selective_scan,
    state_space_gates,
)

SETTINGS = settings(max_examples=15, deadline=None)
TAPS = 4
shapes = st.builds(
    lambda heads, group, key, value, *ways: DeltaShape(heads, heads * group, key, value, *ways),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from([4, 7, 16]),
    st.sampled_from([5, 8]),
    st.booleans(),
    st.booleans(),
)


def batch_of(counts: list[int], lengths: list[int], rows: list[int], exact: bool = False) -> AttentionBatch:
    """So many new tokens of sequences that are so long with them; decodes come first."""
    starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
    none: Any = None
    return AttentionBatch(
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_tables=none,
        slot_mapping=none,
        positions=none,
        max_query_len=max(counts),
        max_seq_len=max(lengths),
        num_decodes=sum(count == 1 for count in counts),
        exact=exact,
        state_rows=torch.tensor(rows),
    )


def run(
    inputs: list[torch.Tensor], weight: torch.Tensor, shape: DeltaShape, cut: int, exact: bool = False
) -> torch.Tensor:
    """Run the tokens of one sequence in chunks of `cut`, beside a decode of another one."""
    x, decay, strength = inputs
    conv = torch.full((3, shape.channels, TAPS - 1), float("nan"))
    states = torch.full((3, shape.value_heads, shape.key_dim, shape.value_dim), float("nan"))
    found = []
    for start in range(0, len(x), cut):
        end = min(start + cut, len(x))
        order = [0, 1] if end - start > 1 else [1, 0]
        counts = [[1, end - start][index] for index in order]
        lengths, rows = (
            [[start // cut + 1, end][index] for index in order],
            [[0, 2][index] for index in order],
        )
        batch = batch_of(counts, lengths, rows, exact)
        own = slice(1, None) if order == [0, 1] else slice(0, 1)
        parts = [
            torch.cat([part[:1], part[start:end]] if order == [0, 1] else [part[start:end], part[:1]])
            for part in (x, decay, strength)
        ]
        mixed = causal_conv(parts[0], weight, conv, batch)
        found.append(delta_rule(mixed, parts[1], parts[2], states, batch, shape)[own])
    assert states[1].isnan().all()
    assert conv[1].isnan().all()
    return torch.cat(found)


def definition(inputs: list[torch.Tensor], weight: torch.Tensor, shape: DeltaShape) -> torch.Tensor:
    """Compute one head and one token at a time, in fp64."""
    x, decay, strength = (part.double() for part in inputs)
    padded = torch.cat((x.new_zeros(TAPS - 1, x.shape[1]), x))
    mixed = torch.stack(
        [
            torch.stack([padded[t + tap] * weight[:, tap].double() for tap in range(TAPS)]).sum(0)
            for t in range(len(x))
        ]
    )
    mixed = mixed * mixed.sigmoid()
    width, group = shape.key_heads * shape.key_dim, shape.value_heads // shape.key_heads
    out = x.new_zeros(len(x), shape.value_heads, shape.value_dim)
    for head in range(shape.value_heads):
        key_head = head % shape.key_heads if shape.tiled else head // group
        key, value = key_head * shape.key_dim, 2 * width + head * shape.value_dim
        state = x.new_zeros(shape.key_dim, shape.value_dim)
        for t, row in enumerate(mixed):
            q, k = row[key : key + shape.key_dim], row[width + key : width + key + shape.key_dim]
            v = row[value : value + shape.value_dim]
            state = decay[t, head].exp() * state
            if shape.corrects:
                q, k = (part / (part.square().sum() + 1e-6).sqrt() for part in (q, k))
                q, v = q * shape.key_dim**-0.5, v - k @ state
            state = state + strength[t, head] * torch.outer(k, v)
            out[t, head] = q @ state
    return out


def drawn(shape: DeltaShape, length: int, seed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    heads = shape.value_heads
    gates = delta_gates(randn(length, heads), randn(length, heads), randn(heads).exp(), randn(heads))
    return [randn(length, shape.channels), *gates], randn(shape.channels, TAPS)


@SETTINGS
@given(shape=shapes, length=st.integers(1, 90), cut=st.integers(1, 90), seed=st.integers(0, 999))
def test_results_are_those_of_the_definition_in_any_chunks(
    shape: DeltaShape, length: int, cut: int, seed: int
) -> None:
    inputs, weight = drawn(shape, length, seed)
    found = run(inputs, weight, shape, cut)
    expected = definition(inputs, weight, shape)
    # Without corrections results grow with keys and queries.
    size = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found.double() / size, expected / size, atol=2e-5, rtol=1e-4)


@SETTINGS
@given(shape=shapes, length=st.integers(1, 40), cut=st.integers(1, 40), seed=st.integers(0, 999))
def test_in_an_exact_batch_tokens_have_the_same_bits_in_any_chunks(
    shape: DeltaShape, length: int, cut: int, seed: int
) -> None:
    inputs, weight = drawn(shape, length, seed)
    assert torch.equal(run(inputs, weight, shape, cut, exact=True), run(inputs, weight, shape, 1, exact=True))


@SETTINGS
@given(a=st.floats(-100, 100), b=st.floats(-100, 100))
def test_what_is_written_fades_and_nothing_grows(a: float, b: float) -> None:
    """Decays are at most 0, strengths within [0, 1], for any projection."""
    decay, strength = delta_gates(
        torch.tensor([[a]]), torch.tensor([[b]]), torch.tensor([2.0]), torch.tensor([0.5])
    )
    expected = -2.0 * torch.nn.functional.softplus(torch.tensor(a + 0.5))
    torch.testing.assert_close(decay[0, 0], expected, atol=1e-6, rtol=1e-5)
    assert 0.0 <= float(strength) <= 1.0


@SETTINGS
@given(seed=st.integers(0, 999), rows=st.integers(1, 4))
def test_a_norm_of_groups_and_gates_has_the_bits_of_each_row_alone(seed: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, gate = (torch.randn(rows, 12, generator=generator) for _ in range(2))
    weight = torch.randn(12, generator=generator)
    whole = gated_group_norm(x, gate, weight, 3, 1e-6)
    alone = [gated_group_norm(x[i : i + 1], gate[i : i + 1], weight, 3, 1e-6) for i in range(rows)]
    assert torch.equal(whole, torch.cat(alone))
    gated = (x * torch.nn.functional.silu(gate)).view(rows, 3, 4)
    torch.testing.assert_close(
        whole, torch.nn.functional.rms_norm(gated, (4,), None, 1e-6).flatten(1) * weight
    )


@SETTINGS
@given(step=st.floats(-100, 100))
def test_the_decay_of_a_state_space_is_its_step_times_a_rate(step: float) -> None:
    decay, found = state_space_gates(torch.tensor([[step]]), torch.tensor([2.0]), torch.tensor([0.5]))
    expected = torch.nn.functional.softplus(torch.tensor(step + 0.5))
    torch.testing.assert_close(found[0, 0], expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(decay, -2.0 * found)


def test_a_bias_is_added_before_the_activation() -> None:
    x, bias = torch.randn(5, 8), torch.randn(8)
    states, none = torch.zeros(1, 8, TAPS - 1), torch.zeros(8, TAPS)
    found = causal_conv(x, none, states, batch_of([5], [5], [0]), bias)
    torch.testing.assert_close(found, torch.nn.functional.silu(bias).expand(5, 8))
    found = causal_conv(x, none, states, batch_of([5], [5], [0]), bias, activated=False)
    assert torch.equal(found, bias.expand(5, 8))


@SETTINGS
@given(seed=st.integers(0, 999), rows=st.integers(1, 4))
def test_a_gated_norm_has_the_bits_of_each_row_alone(seed: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, gate = (torch.randn(rows, 3, 7, generator=generator) for _ in range(2))
    weight = torch.randn(7, generator=generator)
    whole = gated_norm(x, gate, weight, 1e-6)
    alone = [gated_norm(x[i : i + 1], gate[i : i + 1], weight, 1e-6) for i in range(rows)]
    assert torch.equal(whole, torch.cat(alone))
    expected = torch.nn.functional.rms_norm(x, (7,), weight, 1e-6) * torch.nn.functional.silu(gate)
    torch.testing.assert_close(whole, expected)


@SETTINGS
@given(cut=st.integers(1, 8), seed=st.integers(0, 99))
def test_a_selective_state_space_is_its_recurrence_with_the_same_bits_in_any_chunks(
    cut: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, steps = (torch.randn(9, 5, generator=generator) for _ in range(2))
    writes, reads = (torch.randn(9, 3, generator=generator) for _ in range(2))
    rates, shifts = torch.rand(5, 3, generator=generator), torch.randn(5, generator=generator)

    def run(first: int, stop: int, states: torch.Tensor) -> torch.Tensor:
        u, step, write, read = (each[first:stop] for each in (x, steps, writes, reads))
        return selective_scan(
            u, step, write, read, rates, shifts, states, batch_of([stop - first], [stop], [1])
        )

    state, expected = torch.zeros(5, 3), []
    sizes = torch.nn.functional.softplus(steps + shifts)
    for token in range(9):
        size = sizes[token].unsqueeze(1)
        state = state * torch.exp(-size * rates) + size * x[token].unsqueeze(1) * writes[token]
        expected.append(state @ reads[token])
    whole, parts = (torch.full((2, 5, 3), float("nan")) for _ in range(2))
    found = run(0, 9, whole)
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-5)
    assert torch.equal(found, torch.cat([run(0, cut, parts), run(cut, 9, parts)]))
    assert torch.equal(whole[1], parts[1])
    assert whole[0].isnan().all()
