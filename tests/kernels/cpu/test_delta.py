"""Laws of the compiled delta nets and state spaces, against torch's version of the operations."""

from __future__ import annotations

from dataclasses import asdict

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.cpu.test_operations import DTYPES, library, program, randn, tokens

from plumbline_kernels.attention import AttentionBatch
from plumbline_kernels.cpu.layout import GateOp
from plumbline_kernels.cpu.library import Library
from plumbline_kernels.cpu.states import DeltaOp, DeltaStruct, ShortConvOp
from plumbline_kernels.delta import (
    DeltaShape,
    causal_conv,
    delta_gates,
    delta_rule,
    gated_group_norm,
    gated_norm,
    state_space_gates,
)

__all__ = ["library"]
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
shapes = st.builds(
    lambda heads, group, key, value, *ways: DeltaShape(heads, heads * group, key, value, *ways),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from([16, 48]),
    st.sampled_from([16, 64, 80]),
    st.booleans(),
    st.booleans(),
)


class Net:
    """A delta net or state space with random weights."""

    def __init__(self, shape: DeltaShape, taps: int, has_bias: bool) -> None:
        self.shape, heads = shape, shape.value_heads
        self.values = heads * shape.value_dim
        self.conv, self.conv_bias = (
            randn(shape.channels, taps, seed=1),
            randn(shape.channels, seed=2) if has_bias else None,
        )
        self.rates, self.shifts = randn(heads, seed=3).exp(), randn(heads, seed=4)
        self.norm = randn(shape.value_dim if shape.corrects else self.values, seed=5)
        self.skip = None if shape.corrects else randn(heads, seed=6)
        self.width = shape.channels + self.values + heads * (1 + shape.corrects)

    def states(self, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of sequences that have none of their own yet: what others left."""
        shape = self.shape
        inputs = torch.full((rows, shape.channels, self.conv.shape[1] - 1), float("nan"), dtype=dtype)
        return inputs, torch.full((rows, shape.value_heads, shape.key_dim, shape.value_dim), float("nan"))

    def reference(
        self, x: torch.Tensor, states: tuple[torch.Tensor, torch.Tensor], batch: AttentionBatch
    ) -> torch.Tensor:
        shape, heads = self.shape, self.shape.value_heads
        qkv, gate = x[:, : shape.channels], x[:, shape.channels : shape.channels + self.values]
        mixed = causal_conv(qkv, self.conv, states[0], batch, self.conv_bias)
        if self.skip is None:
            gates = delta_gates(x[:, -heads:], x[:, -2 * heads : -heads], self.rates, self.shifts)
        else:
            gates = state_space_gates(x[:, -heads:], self.rates, self.shifts)
        found = delta_rule(mixed, *gates, states[1], batch, shape)
        if self.skip is None:
            return gated_norm(found, gate.reshape(found.shape), self.norm, 1e-6).flatten(1)
        values = mixed[:, -self.values :].reshape(found.shape)
        found = (found.float() + self.skip[:, None] * values.float()).to(found.dtype)
        return gated_group_norm(found.flatten(1), gate, self.norm, shape.key_heads, 1e-6)


@DTYPES
@settings(max_examples=10, deadline=None)
@given(
    shape=shapes,
    taps=st.sampled_from([2, 4]),
    has_bias=st.booleans(),
    lens=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 70)), min_size=1, max_size=3),
)
def test_a_prompt_and_what_follows_it_are_those_of_the_reference(
    library: Library,
    dtype: torch.dtype,
    shape: DeltaShape,
    taps: int,
    has_bias: bool,
    lens: list[tuple[int, int]],
) -> None:
    """Of each sequence first some tokens, into states that others have left, and then the others."""
    net, count = Net(shape, taps, has_bias), sum(sum(pair) for pair in lens)
    steps = [tokens(0, [(0, first) for first, _ in lens]), tokens(0, lens)]
    rows = torch.randperm(4, generator=torch.Generator().manual_seed(count))
    ours, theirs = (net.states(4, dtype) for _ in range(2))
    # `tokens` puts decodes first.
    orders = [sorted(range(len(lens)), key=lambda index: lens[index][part] != 1) for part in range(2)]
    for number, (step, order) in enumerate(zip(steps, orders, strict=True)):
        object.__setattr__(step, "state_rows", rows[order].contiguous())
        x = randn(len(step.positions), net.width, seed=7 + number, dtype=dtype)
        recorded = program(library, dtype)
        part = DeltaStruct(
            conv=net.conv.t().contiguous(),
            conv_bias=net.conv_bias,
            rates=net.rates,
            shifts=net.shifts,
            norm=net.norm,
            skip=net.skip,
            taps=taps,
            eps=1e-6,
            **asdict(shape),
        )
        recur = DeltaOp(delta=part, projected=x, stride=net.width, inputs=ours[0], matrices=ours[1])
        out = recorded.fill(recur, net.values)
        recorded.run(torch.zeros(len(x), dtype=torch.int64), step, None)
        wanted = net.reference(x, theirs, step).float()
        error = (out[: len(x)].float() - wanted).norm() / wanted.norm()
        assert error < TOLERANCES[dtype]
    used = rows[: len(lens)]
    torch.testing.assert_close(ours[1][used], theirs[1][used], atol=TOLERANCES[dtype], rtol=1e-2)
    free = [row for row in range(4) if row not in used.tolist()]
    assert ours[1][free].isnan().all()


@DTYPES
@settings(max_examples=10, deadline=None)
@given(
    width=st.sampled_from([16, 272]),
    taps=st.integers(2, 5),
    has_bias=st.booleans(),
    lens=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3),
)
def test_a_short_convolution_is_that_of_the_reference(
    library: Library, dtype: torch.dtype, width: int, taps: int, has_bias: bool, lens: list[tuple[int, int]]
) -> None:
    conv, bias = randn(width, taps, seed=1), randn(width, seed=2) if has_bias else None
    steps = [tokens(0, [(0, first) for first, _ in lens]), tokens(0, lens)]
    ours, theirs = (torch.full((4, width, taps - 1), float("nan"), dtype=dtype) for _ in range(2))
    orders = [sorted(range(len(lens)), key=lambda index: lens[index][part] != 1) for part in range(2)]
    for number, (step, order) in enumerate(zip(steps, orders, strict=True)):
        object.__setattr__(step, "state_rows", torch.tensor(order))
        x = randn(len(step.positions), 3 * width, seed=7 + number, dtype=dtype)
        recorded = program(library, dtype)
        out = recorded.fill(
            ShortConvOp(
                projected=x,
                conv=conv.t().contiguous(),
                conv_bias=bias,
                inputs=ours,
                width=width,
                taps=taps,
            ),
            width,
        )
        recorded.run(torch.zeros(len(x), dtype=torch.int64), step, None)
        of_inputs, of_results, inputs = x.chunk(3, 1)
        mixed = causal_conv((of_inputs * inputs).contiguous(), conv, theirs, step, bias, activated=False)
        torch.testing.assert_close(
            out[: len(x)].float(), (of_results * mixed).float(), atol=TOLERANCES[dtype], rtol=1e-2
        )


@DTYPES
def test_gates_may_be_the_end_of_longer_rows(library: Library, dtype: torch.dtype) -> None:
    whole, x = randn(3, 96, seed=1, dtype=dtype), randn(3, 32, seed=2, dtype=dtype)
    recorded = program(library, dtype)
    out = recorded.fill(GateOp(x=x, gates=whole[:, 64:], stride=96, width=32, by_gelu=False), 32)
    recorded.run(torch.zeros(3, dtype=torch.int64), tokens(3), None)
    wanted = x.float() * whole[:, 64:].float().sigmoid()
    torch.testing.assert_close(out[:3].float(), wanted, atol=TOLERANCES[dtype], rtol=1e-2)
