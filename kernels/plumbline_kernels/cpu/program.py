"""Record the operations of a forward pass once, and run them in one call per step."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AttentionBatch, Selection
from plumbline_kernels.cpu.library import Library, Op, PackedWeight

__all__ = ["Program"]

_EMBED, _NORM, _LINEAR, _ROPE, _SELECT, _ATTEND, _SILU_MUL = range(7)


class _Model(ctypes.Structure):
    _fields_ = (
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("cos_sin", ctypes.c_void_p),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("is_bf16", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    )


class _Sequences(ctypes.Structure):
    _fields_ = (
        ("query_start", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )

    def point_to(self, batch: AttentionBatch) -> None:
        self.query_start = batch.query_start_loc.data_ptr()
        self.seq_lens = batch.seq_lens.data_ptr()
        self.tables = batch.block_tables.data_ptr()
        self.count, self.width = batch.block_tables.shape


class _Step(ctypes.Structure):
    _fields_ = (
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("all", _Sequences),
        ("rows", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("selected", _Sequences),
    )


class Program:
    """The operations of a forward pass, with buffers for at most `capacity` tokens.

    Each method records one operation and returns the buffer that it fills, [capacity, width]. Operations of the same
    kind and width share a buffer, so a result must be used before the next one of its kind is recorded.
    """

    def __init__(
        self,
        library: Library,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        cos_sin: Tensor,
        eps: float,
        dtype: torch.dtype,
        capacity: int,
    ) -> None:
        """Describe the model.

        Args:
            library: the kernels.
            heads: query heads; `kv_heads` divides them.
            kv_heads: key heads.
            head_dim: the width of a head.
            block_size: tokens of a block of the cache.
            cos_sin: fp32 [positions, head_dim], cos in the first half of a row and sin in the second.
            eps: of the norms.
            dtype: of weights, activations and cache.
            capacity: tokens of the largest step.
        """
        self.capacity = capacity
        self._library = library
        self._dtype = dtype
        self._heads, self._head_dim = heads, head_dim
        self._model = _Model(
            heads, kv_heads, head_dim, block_size, cos_sin.data_ptr(), eps, head_dim**-0.5,
            int(dtype == torch.bfloat16), library.threads,
        )  # fmt: skip
        self._ops: list[Op] = []
        self._array: ctypes.Array[Op] | None = None
        self._buffers: dict[tuple[int, int], Tensor] = {}
        self._kept: list[object] = [cos_sin]
        """What the operations point to."""
        self._step = _Step()

    def embed(self, table: Tensor) -> Tensor:
        """Look up the step's tokens in `table` [V, D]; returns the residual stream [T, D]."""
        return self._record(_EMBED, table.shape[1], weight=table)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm of x [T, D]."""
        return self._record(_NORM, x.shape[1], x, weight=weight)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Add x [T, D] to the residual; returns the RMS norm of the sum, and the sum."""
        return self._record(_NORM, x.shape[1], x, weight=weight, state=residual), residual

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Map x [T, in] to x @ weight.T + bias, [T, out]."""
        out = self._record(
            _LINEAR,
            weight.outputs,
            x,
            weight=weight.data,
            more=bias,
            state=weight.scales,
            window=weight.group,
        )
        self._ops[-1].bits = weight.bits
        return out

    def rope_kv_write(
        self, qkv: Tensor, cache: tuple[Tensor, Tensor], q_norm: Tensor | None, k_norm: Tensor | None
    ) -> Tensor:
        """Rotate q and k of qkv, write k and v to the cache, return q [T, H * head_dim].

        With norm weights [head_dim], each head is normalised first.
        """
        keys, values = cache
        width = self._heads * self._head_dim
        return self._record(_ROPE, width, qkv, weight=q_norm, more=k_norm, state=keys, values=values)

    def select(self, q: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the rows of the step's `Selection` from here on."""
        op = Op(kind=_SELECT, out=q.data_ptr(), outputs=q.shape[1], state=residual.data_ptr())
        op.inputs = residual.shape[1]
        self._ops.append(op)
        return q, residual

    def attend(self, q: Tensor, cache: tuple[Tensor, Tensor], window: int | None) -> Tensor:
        """Return the attention of q over the cache, [T, H * head_dim]."""
        keys, values = cache
        return self._record(_ATTEND, q.shape[1], q, state=keys, values=values, window=window or 0)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up of [T, 2 * width]."""
        return self._record(_SILU_MUL, gate_up.shape[1] // 2, gate_up)

    def _record(
        self,
        kind: int,
        width: int,
        x: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        more: Tensor | None = None,
        state: Tensor | None = None,
        values: Tensor | None = None,
        window: int = 0,
    ) -> Tensor:
        """Append an operation that fills the buffer of its kind and width."""
        out = self._buffers.get((kind, width))
        if out is None:
            out = self._buffers[kind, width] = torch.empty(self.capacity, width, dtype=self._dtype)
        op = Op(kind=kind, out=out.data_ptr(), outputs=width, window=window)
        op.inputs = 0 if x is None else x.shape[1]
        for name, tensor in (
            ("input", x),
            ("weight", weight),
            ("more", more),
            ("state", state),
            ("values", values),
        ):
            setattr(op, name, None if tensor is None else tensor.data_ptr())
            self._kept.append(tensor)
        self._ops.append(op)
        return out

    def run(self, token_ids: Tensor, batch: AttentionBatch, selection: Selection | None) -> int:
        """Compute a step; its results are in the buffers.

        Args:
            token_ids: int64 [T], T at most `capacity`.
            batch: where the tokens sit.
            selection: the rows to keep in the last layer; None for all.

        Returns:
            How many rows of the last buffer are results.
        """
        if self._array is None:
            self._array = (Op * len(self._ops))(*self._ops)
        step = self._step
        step.tokens = rows = token_ids.shape[0]
        step.token_ids = token_ids.data_ptr()
        step.positions = batch.positions.data_ptr()
        step.slots = batch.slot_mapping.data_ptr()
        step.all.point_to(batch)
        step.num_rows = -1
        if selection is not None:
            step.num_rows = rows = selection.rows.shape[0]
            step.rows = selection.rows.data_ptr()
            step.selected.point_to(selection.batch)
        self._library.run(
            ctypes.byref(self._model), ctypes.byref(self._array), len(self._ops), ctypes.byref(step)
        )
        return rows
