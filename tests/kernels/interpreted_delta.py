"""Compare the Triton kernels of delta nets under the interpreter with their torch references; test_triton.py runs this.

Laws: decodes, chunks of any length, resumed and fresh sequences and padding give what torch computes token by token,
and states of no sequence stay as they are. The interpreter computes garbage for bf16, so that its way of computing
chunks, in two halves, is tried with fp16.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from plumbline_kernels import _backend, attention
from plumbline_kernels.delta import DeltaShape, _chunks, causal_conv, delta_gates, delta_rule

assert os.environ.get("TRITON_INTERPRET") == os.environ.get("PLUMBLINE_FORCE_TRITON") == "1"

TOLERANCE: dict[torch.dtype, Any] = {
    torch.float32: {"atol": 2e-6, "rtol": 2e-5},
    torch.float16: {"atol": 2e-3, "rtol": 2e-3},
}
TAPS = 4
STEPS = {
    "decodes": [(1, 1), (1, 9), (1, 2)],
    "short": [(1, 5), (2, 2), (3, 4), (5, 40)],
    "one": [(1, 4), (63, 63)],
    "full": [(64, 70)],
    "more": [(65, 65), (2, 3)],
    "mixed": [(1, 1), (1, 3), (130, 133), (7, 7)],
}
"""New tokens of sequences, and their lengths with them; the first that have one token are decodes."""
steps = pytest.mark.parametrize("step", STEPS)
ways = pytest.mark.parametrize(
    ("dtype", "plan"),
    [
        (torch.float32, _chunks.ChunkPlan(32, False)),
        (torch.float16, _chunks.ChunkPlan(32, False)),
        (torch.float16, _chunks.ChunkPlan(64, True)),
    ],
    ids=["float32", "float16", "halves"],
)


def batch_of(step: str) -> attention.AttentionBatch:
    counts, lengths = zip(*STEPS[step], strict=True)
    none = torch.empty(0)
    return attention.AttentionBatch(
        query_start_loc=torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_tables=none,
        slot_mapping=none,
        positions=none,
        max_query_len=max(counts),
        max_seq_len=max(lengths),
        num_decodes=next((i for i, count in enumerate(counts) if count > 1), len(counts)),
        exact=True,
        state_rows=torch.arange(len(counts), 0, -1),
    )


def both(
    monkeypatch: pytest.MonkeyPatch, call: Any, states: Tensor, step: str
) -> list[tuple[Tensor, Tensor]]:
    """Call with a batch and with states, of which those of fresh sequences are NaN, by Triton and by torch."""
    for row, (count, length) in zip(batch_of(step).state_rows, STEPS[step], strict=True):  # type: ignore[arg-type]
        if count == length:
            states[row] = float("nan")
    found = []
    for forced in (True, False):
        monkeypatch.setattr(_backend, "_FORCED", forced)
        changed = states.clone()
        found.append((call(changed, batch_of(step)), changed))
    return found


@pytest.mark.parametrize(
    ("dtype", "bias", "activated"),
    [(torch.float32, False, True), (torch.float32, True, False), (torch.float16, True, True)],
    ids=str,
)
@steps
def test_convolution(
    dtype: torch.dtype, bias: bool, activated: bool, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of channels and of tokens have rests."""
    torch.manual_seed(1)
    monkeypatch.setattr(
        "plumbline_kernels.delta._triton.tuning",
        lambda name: {"block_t": 1 if "decode" in name else 32, "block_c": 32, "num_warps": 4},
    )
    batch = batch_of(step)
    tokens, channels = int(batch.query_start_loc[-1]), 40
    x = torch.randn(tokens + 2, channels).to(dtype)
    weight, shift = torch.randn(channels, TAPS), torch.randn(channels) if bias else None
    states = torch.randn(len(batch.seq_lens) + 1, channels, TAPS - 1).to(dtype)
    (ours, ours_states), (expected, expected_states) = both(
        monkeypatch,
        lambda states, batch: causal_conv(x, weight, states, batch, shift, activated),
        states,
        step,
    )
    torch.testing.assert_close(ours[:tokens], expected[:tokens], **TOLERANCE[dtype])
    assert torch.equal(ours_states, expected_states)


@ways
@pytest.mark.parametrize("corrects", [True, False])
@steps
def test_rule(
    dtype: torch.dtype, plan: Any, corrects: bool, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dims have rests, value heads share keys, and values of 40 dims take several blocks."""
    torch.manual_seed(2)
    monkeypatch.setattr(_chunks, "plan_of", lambda *_: plan)
    shape = DeltaShape(2, 4, 12, 40 if step == "one" else 12, corrects, tiled=corrects)
    batch = batch_of(step)
    tokens, heads = int(batch.query_start_loc[-1]), shape.value_heads
    qkv = torch.randn(tokens + 2, shape.channels).to(dtype)
    gates = delta_gates(  # type: ignore[call-arg]
        *(torch.randn(tokens + 2, heads) for _ in "ab"), torch.rand(heads), torch.randn(heads)
    )
    states = torch.randn(len(batch.seq_lens) + 1, heads, shape.key_dim, shape.value_dim)
    (ours, ours_states), (expected, expected_states) = both(
        monkeypatch, lambda states, batch: delta_rule(qkv, *gates, states, batch, shape), states, step
    )
    # Without corrections results grow with keys and queries.
    size = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(ours / size, expected / size, **TOLERANCE[dtype])
    torch.testing.assert_close(ours_states, expected_states, atol=1e-5, rtol=1e-4)
    assert torch.equal(ours_states[0], states[0])
    assert (ours[tokens:] == 0).all()


@pytest.mark.parametrize("chunk", [32, 64])
@pytest.mark.parametrize("decay", [0.0, -1e-3, -100.0])
def test_keys_that_repeat(chunk: int, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes of full strength to one key replace each other: powers of the system, up to 1e17, would cancel."""
    torch.manual_seed(3)
    monkeypatch.setattr(_chunks, "plan_of", lambda *_: _chunks.ChunkPlan(chunk, False))
    batch, shape = batch_of("more"), DeltaShape(1, 1, 16, 16)
    tokens = int(batch.query_start_loc[-1])
    key = torch.randn(16)
    qkv = torch.cat((key.expand(tokens, 16), key.expand(tokens, 16), torch.randn(tokens, 16)), 1)
    gates = torch.full((tokens, 1), decay), torch.ones(tokens, 1)
    (ours, ours_states), (expected, expected_states) = both(
        monkeypatch,
        lambda states, batch: delta_rule(qkv, *gates, states, batch, shape),
        torch.randn(3, 1, 16, 16),
        "more",
    )
    torch.testing.assert_close(ours, expected, **TOLERANCE[torch.float32])
    torch.testing.assert_close(ours_states, expected_states, atol=1e-5, rtol=1e-4)
    # A query reads what was written last.
    torch.testing.assert_close(ours[:, 0] * 4, qkv[:, 32:], atol=1e-5, rtol=1e-4)
