"""Laws of adapters in the kernels: a row gets the low-rank product of its own adapter, and other rows nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from torch import Tensor

from plumbline_kernels.attention import AttentionBatch
from plumbline_kernels.cpu.layout import AdaptOp, KeepOp, LinearOp
from plumbline_kernels.cpu.library import load
from plumbline_kernels.cpu.program import Adapters, Program
from plumbline_kernels.lora import AdapterRows, lora_add, padded_rank

torch.set_num_threads(1)
SETTINGS = settings(max_examples=EXPLORED or 15, deadline=None)
SLOTS, RANK = 3, 16
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.15}
OWNERS = st.lists(st.sampled_from([None, None, *range(SLOTS)]), min_size=1, max_size=110)
"""The slot of each row."""


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def adapt(x: Tensor, out: Tensor, adapters: Adapters) -> AdaptOp:
    return AdaptOp(pairs=adapters.pairs, x=x, out=out, inputs=x.shape[1], outputs=out.shape[1])


def grouped(owners: list[int | None]) -> AdapterRows:
    slots = sorted({slot for slot in owners if slot is not None})
    rows = [[row for row, owner in enumerate(owners) if owner == slot] for slot in slots]
    starts = [0]
    for group in rows:
        starts.append(starts[-1] + len(group))
    return AdapterRows(
        torch.tensor([row for group in rows for row in group], dtype=torch.int64), tuple(slots), tuple(starts)
    )


def expected(x: Tensor, y: Tensor, down: Tensor, up: Tensor, owners: list[int | None]) -> Tensor:
    """Row by row, in fp64."""
    rows = []
    for row, (source, result) in enumerate(zip(x.double(), y.double(), strict=True)):
        slot = owners[row]
        if slot is not None:
            result = result + up[slot].double() @ (down[slot].double() @ source)
        rows.append(result)
    return torch.stack(rows)


def batch(count: int, adapters: AdapterRows | None) -> AttentionBatch:
    return AttentionBatch(
        query_start_loc=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([count], dtype=torch.int32),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        slot_mapping=torch.arange(count),
        positions=torch.arange(count),
        max_query_len=count,
        max_seq_len=count,
        adapters=adapters,
    )


@SETTINGS
@given(owners=OWNERS, outputs=st.sampled_from([5, 48]), seed=st.integers(0, 1000))
def test_each_row_gets_the_product_of_its_adapter(owners: Any, outputs: int, seed: int) -> None:
    x, y = randn(len(owners), 40, seed=seed), randn(len(owners), outputs, seed=seed + 1)
    down, up = randn(SLOTS, RANK, 40, seed=seed + 2) / 6, randn(SLOTS, outputs, RANK, seed=seed + 3) / 4
    wanted = expected(x, y, down, up, owners)
    result = lora_add(x, y, down, up, grouped(owners))
    assert result is y
    torch.testing.assert_close(y.double(), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bits", [0, 8])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@SETTINGS
@given(
    owners=OWNERS,
    outputs=st.sampled_from([48, 70]),
    absent=st.sampled_from([None, 1]),
    seed=st.integers(0, 1000),
)
def test_compiled_steps_add_the_products_with_the_same_bits_in_any_batch(
    dtype: torch.dtype, bits: int, owners: Any, outputs: int, absent: Any, seed: int
) -> None:
    """Also to results of rounded weights; a slot without projections and rows without a slot stay as they are."""
    library, count = load(), len(owners)
    x, weight = (
        randn(count, 64, seed=seed, dtype=dtype),
        library.pack(randn(outputs, 64, seed=1, dtype=dtype), bits),
    )
    down, up = (
        randn(SLOTS, RANK, 64, seed=2, dtype=dtype) / 8,
        randn(SLOTS, outputs, RANK, seed=3, dtype=dtype) / 4,
    )
    adapters = Adapters(SLOTS)
    for slot in range(SLOTS):
        if slot != absent:
            adapters.put(slot, library.pack(down[slot]), library.pack(up[slot]))
    present = [None if owner == absent else owner for owner in owners]

    def run(rows: slice, adapted: AdapterRows | None, record: bool = True) -> Tensor:
        program = Program(library, dtype=dtype, capacity=200, block_size=4)
        given_rows = x[rows].contiguous()
        out = program.fill(LinearOp(x=given_rows, matrix=weight.matrix(None)), outputs)
        if record:
            program.record(adapt(given_rows, out, adapters))
        size = len(given_rows)
        program.run(torch.zeros(size, dtype=torch.int64), batch(size, adapted), None)
        return out[:size].clone()

    plain = run(slice(None), None, record=False)
    assert torch.equal(run(slice(None), None), plain), "a step without adapters"
    result = run(slice(None), grouped(owners))
    wanted = expected(x, plain, down, up, present)
    torch.testing.assert_close(result.double(), wanted, atol=TOLERANCES[dtype], rtol=0.02)
    alone = [row for row, owner in enumerate(present) if owner is None]
    assert torch.equal(result[alone], plain[alone])
    for row in {0, count // 2, count - 1}:
        assert torch.equal(run(slice(row, row + 1), grouped(owners[row : row + 1])), result[row : row + 1])
    for slot in range(SLOTS):
        adapters.clear(slot)
    assert torch.equal(run(slice(None), grouped(owners)), plain)


def test_a_program_switches_to_the_selected_rows() -> None:
    from plumbline_kernels.attention import RowSelection

    library = load()
    x, weight = randn(5, 32), library.pack(randn(32, 32, seed=1))
    down, up = randn(1, 16, 32, seed=2), randn(1, 32, 16, seed=3)
    adapters = Adapters(1)
    adapters.put(0, library.pack(down[0]), library.pack(up[0]))
    program = Program(library, dtype=torch.float32, capacity=8, block_size=4)
    residual = x.clone()
    first = program.fill(LinearOp(x=x, matrix=weight.matrix(None)), 32)
    program.record(adapt(x, first, adapters))
    for rows in (first, residual):
        program.record(KeepOp(rows=rows, width=32, stride=32, last=rows is residual))
    program.record(adapt(residual, first, adapters))
    kept = torch.tensor([1, 4])
    selection = RowSelection(kept, batch(2, grouped([None, 0])))
    count = program.run(
        torch.zeros(5, dtype=torch.int64), batch(5, grouped([None, 0, None, 0, None])), selection
    )
    assert count == 2
    plain = x.double() @ randn(32, 32, seed=1).double().t()
    delta = x.double() @ down[0].double().t() @ up[0].double().t()
    wanted = torch.stack([plain[1] + delta[1], plain[4] + delta[4]])
    torch.testing.assert_close(first[:2].double(), wanted, atol=1e-3, rtol=1e-4)


def test_groups_are_cut_into_blocks_of_one_adapter() -> None:
    adapted = AdapterRows(torch.arange(40), (4, 1), (0, 35, 40))
    blocks = adapted.blocks(16)
    assert blocks.slots.tolist() == [4, 4, 4, 1]
    assert blocks.starts.tolist() == [0, 16, 32, 35]
    assert blocks.ends.tolist() == [35, 35, 35, 40]
    assert adapted.blocks(16) is blocks


@pytest.mark.parametrize(("rank", "stored"), [(1, 16), (16, 16), (17, 32), (64, 64)])
def test_ranks_are_padded_to_what_instructions_take(rank: int, stored: int) -> None:
    assert padded_rank(rank) == stored


def test_weights_that_do_not_fit_are_refused() -> None:
    x, y, adapted = randn(2, 8), randn(2, 6), grouped([0, None])
    with pytest.raises(ValueError, match=r"down must be \[slots, rank, in\]"):
        lora_add(x, y, randn(1, 16, 9), randn(1, 6, 16), adapted)
    with pytest.raises(ValueError, match=r"up must be \[slots, out, rank\]"):
        lora_add(x, y, randn(1, 16, 8), randn(1, 7, 16), adapted)
