"""Laws of the compiled operations that treat each token alone, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernels.cpu.test_operations import DTYPES, TOLERANCES, angles, library, program, randn, run, tokens

from plumbline_kernels.cpu.layout import (
    ACTIVATIONS,
    ActivateOp,
    AddNormOp,
    ClipOp,
    EmbedOp,
    GateOp,
    HeadsStruct,
    NormStruct,
    PlaceOp,
    RopeOp,
    TokenInputsOp,
)
from plumbline_kernels.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from plumbline_kernels.rope_kv import HeadNorms, plan_rope, rope_kv_write, rotate_torch
from plumbline_kernels.swiglu import (
    gelu,
    gelu_erf,
    gelu_erf_mul,
    gelu_mul,
    relu,
    relu2,
    silu_mul,
    xielu_torch,
)

__all__ = ["library"]

CURVE = torch.tensor([0.8, 0.7, 0.5, -1e-6])
"""Of a xielu."""


@DTYPES
@pytest.mark.parametrize("kind", ["rms", "layer", "layer with bias"])
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_norms_are_those_of_the_reference(library: Any, dtype: torch.dtype, kind: str, factor: float) -> None:
    x, residual, weight = (
        randn(70, 48, dtype=dtype) * 3 + 1,
        randn(70, 48, seed=1, dtype=dtype),
        randn(48, seed=2),
    )
    bias, centred = randn(48, seed=3) if kind == "layer with bias" else None, kind != "rms"
    recorded = program(library, dtype)
    norm = NormStruct(weight=weight, bias=bias, eps=1e-5, centred=centred)
    normed = run(recorded, recorded.fill(AddNormOp(x=x, norm=norm, width=48), 48), 70)
    expected = layer_norm(x, weight, bias, 1e-5) if centred else rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(normed, expected, atol=TOLERANCES[dtype], rtol=1e-2)

    recorded, ours = program(library, dtype), residual.clone()
    both = AddNormOp(x=x, residual=ours, norm=norm, width=48, factor=factor)
    normed = run(recorded, recorded.fill(both, 48), 70)
    if centred:
        expected, total = add_layer_norm(x, residual.clone(), weight, bias, 1e-5, factor)
    else:
        expected, total = add_rms_norm(x, residual.clone(), weight, 1e-5, factor)
    torch.testing.assert_close(ours, total, atol=TOLERANCES[dtype], rtol=1e-2)
    torch.testing.assert_close(normed, expected, atol=2 * TOLERANCES[dtype], rtol=1e-2)

    recorded, sums = program(library, dtype), residual.clone()
    recorded.record(AddNormOp(x=x, residual=sums, norm=NormStruct(weight=None), width=48, factor=factor))
    run(recorded, sums, 70)
    assert torch.equal(sums, ours)


@DTYPES
@pytest.mark.parametrize(
    ("activation", "reference"), [("silu", silu_mul), ("gelu_tanh", gelu_mul), ("gelu", gelu_erf_mul)]
)
def test_gates_are_those_of_the_reference(
    library: Any, dtype: torch.dtype, activation: str, reference: Any
) -> None:
    gate_up = torch.cat((torch.linspace(-200, 200, 64).expand(3, 64), randn(3, 64)), 1).to(dtype)
    recorded = program(library, dtype)
    kind = ACTIVATIONS[activation]
    gated = run(recorded, recorded.fill(ActivateOp(x=gate_up, width=64, activation=kind, gated=True), 64), 3)
    torch.testing.assert_close(gated, reference(gate_up), atol=TOLERANCES[dtype], rtol=1e-2)


@DTYPES
@pytest.mark.parametrize(
    ("activation", "reference"),
    [
        ("gelu_tanh", gelu),
        ("gelu", gelu_erf),
        ("relu", relu),
        ("relu2", relu2),
        ("xielu", lambda x: xielu_torch(x, CURVE)),
    ],
)
def test_activations_without_a_gate_are_those_of_the_reference(
    library: Any, dtype: torch.dtype, activation: str, reference: Any
) -> None:
    x = torch.linspace(-50, 50, 64).expand(3, 64).to(dtype).contiguous()
    recorded = program(library, dtype)
    kind = ACTIVATIONS[activation]
    operation = ActivateOp(x=x, width=64, activation=kind, gated=False, curve=CURVE)
    activated = run(recorded, recorded.fill(operation, 64), 3)
    torch.testing.assert_close(activated, reference(x), atol=TOLERANCES[dtype], rtol=1e-2)


@DTYPES
def test_embeddings_are_rows_of_the_table_times_a_factor(library: Any, dtype: torch.dtype) -> None:
    table, ids = randn(9, 32, dtype=dtype), torch.tensor([3, 8, 0])
    for factor in (1.0, 7.5):
        recorded = program(library, dtype)
        out = recorded.fill(EmbedOp(table=table, width=32, factor=factor), 32)
        recorded.run(ids, tokens(3), None)
        assert torch.equal(out[:3], table[ids] * factor)


@DTYPES
def test_rows_of_positions_are_added_to_the_residual(library: Any, dtype: torch.dtype) -> None:
    table, residual = randn(99, 32, dtype=dtype), randn(64, 32, seed=1, dtype=dtype)
    expected, step = residual.clone(), tokens(5)
    expected[:5] += table[step.positions]
    recorded = program(library, dtype)
    recorded.record(PlaceOp(residual=residual, table=table, width=32))
    run(recorded, residual, 5)
    torch.testing.assert_close(residual, expected)


@DTYPES
def test_numbers_are_clipped_in_place(library: Any, dtype: torch.dtype) -> None:
    rows = randn(64, 48, dtype=dtype) * 3
    expected = torch.cat((rows[:5].clamp(-2, 2), rows[5:]))
    recorded = program(library, dtype)
    recorded.record(ClipOp(rows=rows, width=48, size=2.0))
    run(recorded, rows, 5)
    assert torch.equal(rows, expected)


@DTYPES
@pytest.mark.parametrize("bits", [0, 4, 5, 6, 8])
def test_embeddings_may_be_rows_of_a_packed_matrix(library: Any, dtype: torch.dtype, bits: int) -> None:
    levels = torch.randint(-8, 8, (70, 96), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    scales, shifts = (randn(70, 3, seed=n).bfloat16().float() for n in (2, 3))
    table = (levels * scales.repeat_interleave(32, 1) + shifts.repeat_interleave(32, 1)).to(dtype)
    packed = library.pack(levels, bits, scales, shifts) if bits else library.pack(table)
    ids = torch.tensor([3, 69, 0])
    for factor in (1.0, 7.5):
        recorded = program(library, dtype)
        out = recorded.fill(EmbedOp(packed=packed.matrix(None), width=96, factor=factor), 96)
        recorded.run(ids, tokens(3), None)
        torch.testing.assert_close(out[:3], table[ids] * factor)
        assert bits or torch.equal(out[:3], table[ids] * factor)


@DTYPES
@pytest.mark.parametrize("norms", ["none", "rms", "layer", "whole", "after", "values"])
@pytest.mark.parametrize("turn", ["plain", "none", "temperature"])
def test_rotated_keys_are_written_to_their_slots(
    library: Any, dtype: torch.dtype, norms: str, turn: str
) -> None:
    qkv = randn(5, 8 * 32, dtype=dtype)
    given: dict[str, Any] = {
        "norms": None if norms == "none" else HeadNorms(
            randn(6, 32, seed=3), 1e-5, norms == "layer", norms == "whole", norms == "after", norms == "values"
        ),
        "temperature": randn(40, seed=9) if turn == "temperature" else None,
    }  # fmt: skip
    table = None if turn == "none" else angles()
    batch = tokens(5)
    batch.slot_mapping[:] = torch.tensor([5, -1, 23, 0, -1])
    ours, theirs = ([torch.full((6, 4, 2, 32), 99.0, dtype=dtype) for _ in "kv"] for _ in range(2))
    recorded = program(library, dtype)
    shared = HeadsStruct(
        heads=4,
        kv_heads=2,
        dim=32,
        scale=1.0,
        cos_sin=table,
        temperature=given["temperature"],
        **({} if given["norms"] is None else given["norms"]._asdict()),
    )
    rope = RopeOp(heads=shared, qkv=qkv, stride=8 * 32, keys=ours[0], values=ours[1])
    q = recorded.fill(rope, 4 * 32)
    recorded.run(torch.zeros(5, dtype=torch.int64), batch, None)
    expected = rope_kv_write(
        qkv,
        table,
        batch.positions,
        batch.slot_mapping,
        theirs[0],
        theirs[1],
        4,
        2,
        given["norms"],
        temperature=given["temperature"],
    )
    for mine, reference in zip((q[:5], *ours), (expected.flatten(1), *theirs), strict=True):
        torch.testing.assert_close(mine, reference, atol=3 * TOLERANCES[dtype], rtol=2e-2)


@DTYPES
def test_heads_without_keys_are_rotated(library: Any, dtype: torch.dtype) -> None:
    batch, q = tokens(5), randn(5, 2 * 32, seed=1, dtype=dtype)
    norms = HeadNorms(randn(2, 32, seed=2), 1e-6, False, False, False, False)
    recorded = program(library, dtype)
    heads = HeadsStruct(heads=2, kv_heads=0, dim=32, scale=1.0, cos_sin=angles(), **norms._asdict())
    turned = recorded.fill(RopeOp(heads=heads, qkv=q, stride=64), 64)
    recorded.run(torch.zeros(5, dtype=torch.int64), batch, None)
    plan = plan_rope(angles(), batch.positions, batch.slot_mapping)
    wanted = rotate_torch(q.view(5, 2, 32), plan, 2, norms).flatten(1)
    torch.testing.assert_close(turned[:5], wanted, atol=2 * TOLERANCES[dtype], rtol=2e-2)


@DTYPES
def test_inputs_of_layers_are_a_normalised_projection_and_second_embeddings(
    library: Any, dtype: torch.dtype
) -> None:
    """A given row has the second embedding of the first token. What a layer takes is a part of a longer row."""
    table, projected = randn(9, 3 * 16, dtype=dtype), randn(4, 3 * 16, seed=1, dtype=dtype)
    weight, gate, ids = randn(16, seed=2), randn(4, 16, seed=3, dtype=dtype), torch.tensor([3, -1, 0, 8])
    recorded = program(library, dtype, capacity=4)
    second = recorded.fill(EmbedOp(table=table, width=48, factor=4.0, second=True), 48)
    norm = NormStruct(weight=weight, eps=1e-6)
    inputs = TokenInputsOp(
        x=projected, second=second, norm=norm, layers=3, width=16, factor=0.125, scale=2**-0.5
    )
    found = recorded.fill(inputs, 48).view(4, 3, 16)
    gated = recorded.fill(GateOp(x=gate, gates=found[:, 1], stride=48, width=16, by_gelu=True), 16)
    recorded.run(ids, tokens(4), None)
    own = table[ids.clamp(min=0)].float().view(4, 3, 16) * 4.0
    wanted = (rms_norm(projected.float().view(12, 16) * 0.125, weight, 1e-6).view(4, 3, 16) + own) * 2**-0.5
    torch.testing.assert_close(found.float(), wanted, atol=2 * TOLERANCES[dtype], rtol=2e-2)
    expected = gelu_mul(torch.cat((gate.float(), wanted[:, 1]), 1))
    torch.testing.assert_close(gated.float(), expected, atol=4 * TOLERANCES[dtype], rtol=4e-2)
