"""Compute a gated delta net (arXiv 2412.06464) over the states of its sequences, for any mix of decodes and chunks.

Each value head h keeps a matrix S, fp32 [key_dim, value_dim]. For a token with key k, query q (both of length 1), value
v, decay g <= 0 and strength b:

    S = exp(g) S             what was written fades
    S = S + b k (v - k S)    the value that k reads is corrected towards v
    o = q S / sqrt(key_dim)

A state space of Mamba 2 (arXiv 2405.21060) is the same without the correction, S = exp(g) S + b k v, with keys and
queries as they are: k, q and v are called B, C and x there, and b is the step.

Before that, q, k and v pass a causal convolution of a few taps for each channel alone. A sequence whose first new token
is at position 0 begins with empty states, whatever its row holds, NaN included.

Torch's `silu`, `sigmoid`, `softplus` and `rsqrt` give other bits at the end of a tensor, so a token would depend on
the others of its step; `exp`, `log` and `sqrt` do not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch
from plumbline_kernels._backend import FLOATS, check, use_triton
from plumbline_kernels.delta import _triton
from plumbline_kernels.delta.shape import DeltaShape
from plumbline_kernels.swiglu import sigmoid_torch

__all__ = [
    "DeltaShape",
    "causal_conv",
    "delta_gates",
    "delta_rule",
    "gated_group_norm",
    "gated_norm",
    "selective_scan",
    "state_space_gates",
]

_CHUNK = 64
"""Tokens whose corrections are found at once, by a triangular system of this size."""
_LEAST = 1e-6
"""Added to the squared length of keys and queries, as in the models' own code."""


def causal_conv(
    x: Tensor,
    weight: Tensor,
    states: Tensor,
    batch: AttentionBatch,
    bias: Tensor | None = None,
    activated: bool = True,
) -> Tensor:
    """Convolve the tokens of each sequence with the ones before, and take the SiLU; returns [T, C].

    Args:
        x: [T, C], contiguous rows.
        weight: fp32 [C, taps], contiguous; the last tap is the token's own.
        states: [rows, C, taps - 1], contiguous: the last inputs of each sequence, which are replaced.
        batch: with `state_rows`. Rows of x that belong to no sequence come back as anything.
        bias: fp32 [C], added before the SiLU.
        activated: whether the SiLU is taken.
    """
    rows = _rows(batch)
    check(x.dim() == 2 and x.dtype in FLOATS and x.stride(1) == 1, "causal_conv: x must be [T, C] floats")
    check(weight.shape[0] == x.shape[1] == states.shape[1], "causal_conv: channels differ")
    check(
        weight.shape[1] == states.shape[2] + 1,
        "causal_conv: states must keep one input less than there are taps",
    )
    if use_triton(x):
        return _triton.launch_conv(x, weight, states, batch, bias, activated)
    out = torch.empty_like(x)
    taps = weight.unbind(1)
    for tokens, row, fresh in _spans(batch, rows):
        # [n, C, tokens + taps - 1]; a span of several tokens has one sequence.
        new = x[tokens].t().unsqueeze(0) if row.numel() == 1 else x[tokens].unsqueeze(2)
        before = states[row].masked_fill_(fresh[:, None, None], 0.0)
        window = torch.cat((before, new), 2)
        length = new.shape[2]
        # Tap by tap, so that a token has the same bits in any cut.
        total = sum(window[:, :, tap : tap + length].float() * taps[tap][:, None] for tap in range(len(taps)))
        assert isinstance(total, Tensor)
        if bias is not None:
            total = total + bias[:, None]
        done = (total * sigmoid_torch(total) if activated else total).to(x.dtype)
        out[tokens] = done[0].t() if row.numel() == 1 else done[:, :, 0]
        states[row] = window[:, :, length:]
    return out


def delta_gates(a: Tensor, b: Tensor, rates: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """Return decays g and strengths of tokens, fp32 [T, HV].

    Args:
        a: [T, HV].
        b: [T, HV].
        rates: fp32 [HV], positive.
        shifts: fp32 [HV].
    """
    return -rates * _softplus(a.float() + shifts), sigmoid_torch(b.float())


def state_space_gates(steps: Tensor, rates: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """Return decays and steps of tokens, fp32 [T, HV], of their projection [T, HV]; see `delta_gates`."""
    found = _softplus(steps.float() + shifts)
    return -rates * found, found


def _softplus(x: Tensor) -> Tensor:
    return x.clamp(min=0.0) + torch.log(1.0 + x.abs().neg().exp())


def delta_rule(
    qkv: Tensor, decay: Tensor, strength: Tensor, states: Tensor, batch: AttentionBatch, shape: DeltaShape
) -> Tensor:
    """Return what the queries read, [T, HV, value_dim], and bring the states up to date.

    Args:
        qkv: [T, C]: queries, keys and values, before they are scaled to length 1.
        decay: fp32 [T, HV].
        strength: fp32 [T, HV].
        states: fp32 [rows, HV, key_dim, value_dim], contiguous.
        batch: with `state_rows`. Rows that belong to no sequence come back as zeros. If it is `exact`, tokens are
            computed one by one, so that they have the same bits in any chunks.
        shape: the heads.
    """
    rows = _rows(batch)
    check(qkv.dim() == 2 and qkv.shape[1] == shape.channels, "delta_rule: qkv must be [T, channels]")
    check(decay.shape == strength.shape == (len(qkv), shape.value_heads), "delta_rule: gates must be [T, HV]")
    check(
        states.shape[1:] == (shape.value_heads, shape.key_dim, shape.value_dim)
        and states.dtype == torch.float32,
        "delta_rule: states must be fp32 [rows, HV, key_dim, value_dim]",
    )
    if use_triton(qkv):
        return _triton.launch_rule(qkv, decay, strength, states, batch, shape)
    q, k, v = _heads(qkv, shape)
    out = qkv.new_zeros(len(qkv), shape.value_heads, shape.value_dim)
    for tokens, row, fresh in _spans(batch, rows):
        state = states[row].masked_fill_(fresh[:, None, None, None], 0.0)
        parts = (q[tokens], k[tokens], v[tokens], decay[tokens], strength[tokens])
        if len(parts[0]) == len(row):
            found = _next(*parts, state, shape.corrects)
        else:
            walk = _one_by_one if batch.exact else _in_chunks
            found, state[0] = walk(*parts, state[0], shape.corrects)
        out[tokens] = found.to(out.dtype)
        states[row] = state
    return out


def selective_scan(
    x: Tensor,
    steps: Tensor,
    writes: Tensor,
    reads: Tensor,
    rates: Tensor,
    shifts: Tensor,
    states: Tensor,
    batch: AttentionBatch,
) -> Tensor:
    """Run a state space of Mamba 1, token by token: S = exp(-d rates) S + d x w, and o = S r; returns fp32 [T, W].

    Args:
        x: [T, W].
        steps: [T, W]; d is the softplus of steps and shifts.
        writes: [T, N], what an input is written with.
        reads: [T, N].
        rates: fp32 [W, N], positive.
        shifts: fp32 [W].
        states: fp32 [rows, W, N], which are brought up to date.
        batch: with `state_rows`. Rows that belong to no sequence come back as zeros.
    """
    sizes = _softplus(steps.float() + shifts)
    written = (sizes * x.float()).unsqueeze(2) * writes.float().unsqueeze(1)
    fading = (-sizes.unsqueeze(2) * rates).exp_()
    wide = reads.float().unsqueeze(1)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for tokens, row, fresh in _spans(batch, _rows(batch)):
        state = states[row].masked_fill_(fresh[:, None, None], 0.0)
        # Decodes are one step of many sequences, a chunk is many steps of one.
        together = len(row) if tokens.stop - tokens.start == len(row) else 1
        for first in range(tokens.start, tokens.stop, together):
            now = slice(first, first + together)
            state = state * fading[now] + written[now]
            out[now] = (state * wide[now]).sum(2)
        states[row] = state
    return out


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x²) + eps) * weight * silu(gate), for x and gate [T, H, D], and weight fp32 [D]."""
    wide = x.float()
    normed = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
    gate = gate.float()
    return (normed.to(x.dtype).float() * gate * sigmoid_torch(gate)).to(x.dtype)


def gated_group_norm(x: Tensor, gate: Tensor, weight: Tensor, groups: int, eps: float) -> Tensor:
    """Return the RMS norm of each group of x * silu(gate), times a weight; x and gate [T, W], weight fp32 [W]."""
    gate = gate.float()
    parts = (x.float() * gate * sigmoid_torch(gate)).view(len(x), groups, -1)
    normed = parts / torch.sqrt(parts.square().mean(-1, keepdim=True) + eps)
    return (normed.flatten(1).to(x.dtype).float() * weight).to(x.dtype)


def _rows(batch: AttentionBatch) -> Tensor:
    check(batch.state_rows is not None, "delta: the batch must have state_rows")
    assert batch.state_rows is not None
    return batch.state_rows


def _spans(batch: AttentionBatch, rows: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield tokens, rows of states, and which of them begin empty: all decodes at once, then chunk by chunk."""
    found = batch.plans.get("spans")
    if found is None:
        starts = batch.query_start_loc.long()
        fresh = batch.seq_lens.long() == starts.diff()
        bounds, count = starts.tolist(), batch.num_decodes
        found = [(slice(0, count), rows[:count], fresh[:count])] if count else []
        for index in range(count, len(rows)):
            found.append(
                (slice(bounds[index], bounds[index + 1]), rows[index : index + 1], fresh[index : index + 1])
            )
        batch.plans["spans"] = found
    yield from found


def _heads(qkv: Tensor, shape: DeltaShape) -> tuple[Tensor, Tensor, Tensor]:
    """Return q and k of length 1, and v, all fp32 [T, HV, dim]; q is divided by sqrt(key_dim)."""
    width, group = shape.key_heads * shape.key_dim, shape.value_heads // shape.key_heads
    both = qkv[:, : 2 * width].float().reshape(len(qkv), 2, shape.key_heads, shape.key_dim)
    if shape.corrects:
        both = both / torch.sqrt(both.square().sum(-1, keepdim=True) + _LEAST)
    q, k = (both.repeat(1, 1, group, 1) if shape.tiled else both.repeat_interleave(group, 2)).unbind(1)
    v = qkv[:, 2 * width :].float().reshape(len(qkv), shape.value_heads, shape.value_dim)
    return q * shape.key_dim**-0.5 if shape.corrects else q, k, v


def _next(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor, state: Tensor, corrects: bool
) -> Tensor:
    """Compute one token of each of n sequences, [n, HV, dim], and change their states [n, HV, K, V]."""
    state *= decay.exp()[:, :, None, None]
    error = v.unsqueeze(2)
    if corrects:
        error = error - k.unsqueeze(2) @ state
    state += k.unsqueeze(3) * (strength[:, :, None, None] * error)
    return (q.unsqueeze(2) @ state).squeeze(2)


def _one_by_one(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor, state: Tensor, corrects: bool
) -> tuple[Tensor, Tensor]:
    """Compute the tokens of a chunk as decodes; returns [L, HV, V] and the state [HV, K, V]."""
    state = state.unsqueeze(0)
    found = []
    for index in range(len(q)):
        at = slice(index, index + 1)
        found.append(_next(q[at], k[at], v[at], decay[at], strength[at], state, corrects))
    return torch.cat(found), state[0]


def _in_chunks(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor, state: Tensor, corrects: bool
) -> tuple[Tensor, Tensor]:
    """Compute the tokens of a chunk, up to 64 at a time; returns [L, HV, V] and the state [HV, K, V].

    The correction of token i depends on those before it: u_i = b_i (v_i - exp(G_i) k_i S - sum over j < i of
    exp(G_i - G_j) (k_i k_j) u_j), where G sums the decays of the chunk. That is a triangular system for all u.
    """
    found = []
    for start in range(0, len(q), _CHUNK):
        # [HV, L, dim]
        queries, keys, values = (part[start : start + _CHUNK].transpose(0, 1) for part in (q, k, v))
        total = decay[start : start + _CHUNK].t().cumsum(1)
        beta = strength[start : start + _CHUNK].t().unsqueeze(2)
        # Decays from j to i, for j <= i. Masked before exp, which would overflow above the diagonal.
        mask = torch.ones(total.shape[1], total.shape[1], dtype=torch.bool, device=q.device).triu(1)
        fading = (total.unsqueeze(2) - total.unsqueeze(1)).masked_fill(mask, float("-inf")).exp()
        since = total.exp().unsqueeze(2)
        if corrects:
            seen = keys @ keys.transpose(1, 2) * fading
            wanted = beta * (values - since * (keys @ state))
            system = beta * seen  # Its diagonal is taken as ones.
            writes = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        else:
            writes = beta * values
        read = queries @ keys.transpose(1, 2) * fading
        found.append((since * (queries @ state) + read @ writes).transpose(0, 1))
        last = total[:, -1:]
        state = (
            last.exp().unsqueeze(2) * state
            + (keys * (last - total).exp().unsqueeze(2)).transpose(1, 2) @ writes
        )
    return torch.cat(found), state
