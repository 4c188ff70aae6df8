"""Record the operations of a forward pass once, and run them in one call per step."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AdapterRows, AttentionBatch, Selection
from plumbline_kernels.cpu.library import Library, Op, PackedWeight
from plumbline_kernels.cpu.parts import ACTIVATIONS, Adapters, Delta, Experts, Heads, Latent

__all__ = ["Program"]

_EMBED, _NORM, _LINEAR, _ROPE, _SELECT, _ATTEND, _GATE, _EXPERTS, _LATENT_WRITE, _LATENT_VALUES = range(10)
_ADAPT, _DELTA, _OPEN, _KEEP, _TOKENS, _GIVE = range(10, 16)
_BY_SIGMOID, _OF_GELU = range(2)


class _Model(ctypes.Structure):
    _fields_ = (("block_size", ctypes.c_int64), ("is_bf16", ctypes.c_int32), ("threads", ctypes.c_int32))


class _Sequences(ctypes.Structure):
    _fields_ = (
        ("query_start", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("reach", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )

    def point_to(self, batch: AttentionBatch) -> None:
        self.query_start = batch.query_start_loc.data_ptr()
        self.seq_lens = batch.seq_lens.data_ptr()
        self.tables = batch.block_tables.data_ptr()
        self.reach = None if batch.reach is None else batch.reach.data_ptr()
        self.count, self.width = batch.block_tables.shape


class _Groups(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )

    def point_to(self, adapted: AdapterRows | None) -> tuple[object, ...]:
        """Point to the groups; returns what must live as long as the pointers are used."""
        self.count = 0
        if adapted is None:
            return ()
        self.count = count = len(adapted.slots)
        slots, starts = (
            (ctypes.c_int64 * count)(*adapted.slots),
            (ctypes.c_int64 * (count + 1))(*adapted.starts),
        )
        self.slots, self.starts = ctypes.addressof(slots), ctypes.addressof(starts)
        self.rows = adapted.rows.data_ptr()
        return slots, starts, adapted.rows


class _Step(ctypes.Structure):
    _fields_ = (
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("state_rows", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        ("given_width", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("all", _Sequences),
        ("rows", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("selected", _Sequences),
        ("adapted", _Groups),
        ("adapted_selected", _Groups),
    )


class Program:
    """The operations of a forward pass, with buffers for at most `capacity` tokens.

    Each method records one operation and returns the buffer that it fills, [capacity, width]. Operations of the same
    kind and width share a buffer, so a result must be used before the next one of its kind is recorded; that of a norm
    before the second next one.
    """

    def __init__(
        self,
        library: Library,
        *,
        block_size: int,
        dtype: torch.dtype,
        capacity: int,
    ) -> None:
        """Describe the model.

        Args:
            library: the kernels.
            block_size: tokens of a block of the cache.
            dtype: of weights, activations and cache; weights of norms are fp32.
            capacity: tokens of the largest step.
        """
        self.capacity = capacity
        self._library = library
        self._dtype = dtype
        self._model = _Model(block_size, int(dtype == torch.bfloat16), library.threads)
        self._ops: list[Op] = []
        self._array: ctypes.Array[Op] | None = None
        self._buffers: dict[tuple[int, int, int], Tensor] = {}
        self._norms = 0
        self._kept: list[object] = []
        """What the operations point to."""
        self._step = _Step()

    def embed(self, table: Tensor, factor: float = 1.0) -> Tensor:
        """Look up the step's tokens in `table` [V, D], times a factor; returns the residual stream [T, D]."""
        return self._record(_EMBED, table.shape[1], weight=table, factor=factor)

    def give(self, residual: Tensor, part: int) -> Tensor:
        """Add a part of the given rows, as wide as the residual [T, D], to the residual of their tokens."""
        op = Op(kind=_GIVE, out=residual.data_ptr(), outputs=residual.shape[1], mode=part)
        self._ops.append(op)
        return residual

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centred: bool) -> Tensor:
        """Return the norm of x [T, D]: the layer norm if it is centred, else the RMS norm."""
        return self._record(_NORM, x.shape[1], x, weight=weight, more=bias, eps=eps, mode=int(centred))

    def add(self, x: Tensor, residual: Tensor, factor: float = 1.0, scale: float = 1.0) -> Tensor:
        """Add x [T, D], times a factor, to the residual; returns the sum times a scale."""
        self._record(_NORM, x.shape[1], x, state=residual, factor=factor, scale=scale)
        return residual

    def add_norm(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        centred: bool,
        factor: float = 1.0,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Add x [T, D], times a factor, to the residual; returns the norm of the sum times a scale, and that sum."""
        normed = self._record(
            _NORM,
            x.shape[1],
            x,
            weight=weight,
            more=bias,
            state=residual,
            eps=eps,
            factor=factor,
            scale=scale,
            mode=int(centred),
        )
        return normed, residual

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Map x [T, in] to x @ weight.T + bias, [T, out]."""
        return self._record(
            _LINEAR,
            weight.outputs,
            x,
            weight=weight.data,
            more=bias,
            state=weight.scales,
            values=weight.shifts,
            group=weight.group,
            bits=weight.bits,
        )

    def adapt(self, x: Tensor, result: Tensor, adapters: Adapters) -> None:
        """Add to the result [T, out] of a linear layer of x [T, in] the products of the adapters of the rows."""
        op = Op(
            kind=_ADAPT, input=x.data_ptr(), inputs=x.shape[1], out=result.data_ptr(), outputs=result.shape[1]
        )
        op.part = ctypes.addressof(adapters)
        self._kept += (x, adapters)
        self._ops.append(op)

    def rope_kv_write(self, qkv: Tensor, cache: tuple[Tensor, Tensor], heads: Heads) -> Tensor:
        """Rotate q and k of qkv, write k and v to the cache, return q [T, H * head_dim]; gates may follow in a row."""
        keys, values = cache
        return self._record(_ROPE, heads.heads * heads.dim, qkv, state=keys, values=values, part=heads)

    def select(self, *kept: Tensor) -> None:
        """Keep the rows of the step's `Selection` in these buffers, and compute no others from here on."""
        for tensor in kept:
            op = Op(kind=_KEEP, out=tensor.data_ptr(), outputs=tensor.shape[1], group=tensor.stride(0))
            self._ops.append(op)
        self._ops.append(Op(kind=_SELECT))

    def gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x * sigmoid(gate), both [T, width]; gates may be a part of longer rows."""
        return self._record(_OPEN, x.shape[1], x, more=gate, group=gate.stride(0), mode=_BY_SIGMOID)

    def gated_inputs(self, gate: Tensor, given: Tensor) -> Tensor:
        """Return gelu(gate) * given, both [T, width]; what is given may be a part of longer rows."""
        return self._record(_OPEN, gate.shape[1], gate, more=given, group=given.stride(0), mode=_OF_GELU)

    def token_inputs(
        self, projected: Tensor, table: Tensor, factor: float, norm: Tensor, eps: float, scale: float
    ) -> Tensor:
        """Return the inputs of all layers, [T, layers, width].

        Args:
            projected: what the embeddings are projected to, [T, layers * width].
            table: second embeddings, [V, layers * width]; tokens of given rows have that of the first token.
            factor: on these.
            norm: the weight of the norm of each layer's part of the projection, fp32 [width].
            eps: of the norm.
            scale: on the projection.
        """
        own = self._record(_EMBED, table.shape[1], weight=table, factor=factor, mode=1)
        parts = projected.view(self.capacity, -1, len(norm))
        found = self._record(
            _TOKENS,
            table.shape[1],
            parts[:, 0],
            weight=norm,
            more=own,
            eps=eps,
            factor=scale,
            scale=2.0**-0.5,
        )
        self._ops[-1].inputs = len(norm)
        return found.view(parts.shape)

    def delta(self, projected: Tensor, states: tuple[Tensor, Tensor], delta: Delta) -> Tensor:
        """Run a delta net on its projection and its states; returns [T, HV * value_dim].

        The inputs that a row of states keeps are laid out as [taps - 1, channels].
        """
        inputs, matrices = states
        width = delta.value_heads * delta.value_dim
        return self._record(_DELTA, width, projected, state=inputs, values=matrices, part=delta)

    def attend(self, q: Tensor, cache: tuple[Tensor, Tensor], heads: Heads) -> Tensor:
        """Return the attention of q over the cache, [T, H * head_dim]."""
        keys, values = cache
        return self._record(_ATTEND, q.shape[1], q, state=keys, values=values, part=heads)

    def activate(self, x: Tensor, activation: str, gated: bool) -> Tensor:
        """Return activation(gate) * up of [T, 2 * width], or activation(x) of [T, width]."""
        width = x.shape[1] // 2 if gated else x.shape[1]
        return self._record(_GATE, width, x, mode=ACTIVATIONS[activation])

    def rotate(self, q: Tensor, heads: Heads) -> Tensor:
        """Normalise and rotate q [T, H * head_dim]; the heads have no keys."""
        assert heads.kv_heads == 0
        return self._record(_ROPE, q.shape[1], q, part=heads)

    def experts(
        self, x: Tensor, experts: Experts, shared: Tensor | None, asked: Tensor | None = None
    ) -> Tensor:
        """Return the experts' results for x [T, D], and shared [T, D] times its gate, added up.

        The router reads `asked` [T, D], or x.
        """
        return self._record(_EXPERTS, x.shape[1], x, state=shared, more=asked, part=experts)

    def latent_write(self, q: Tensor, kv: Tensor, cache: Tensor, latent: Latent) -> Tensor:
        """Write latents and keys of kv to the cache; returns queries over it, [T, H * (rank + rope)]."""
        width = latent.heads * (latent.rank + latent.rope_dim)
        return self._record(_LATENT_WRITE, width, q, more=kv, state=cache, part=latent)

    def latent_values(self, attended: Tensor, latent: Latent) -> Tensor:
        """Map sums of what the cache has to the values of heads, [T, H * value]."""
        return self._record(_LATENT_VALUES, latent.heads * latent.value_dim, attended, part=latent)

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
        part: Heads | Experts | Latent | Delta | None = None,
        **numbers: float,
    ) -> Tensor:
        """Append an operation that fills the buffer of its kind and width."""
        if kind == _NORM:
            self._norms += 1
        # The second embeddings of tokens may be as wide as the first ones, which are the residual stream.
        which = {_NORM: self._norms % 2, _EMBED: int(numbers.get("mode", 0))}.get(kind, 0)
        place = kind, width, which
        out = self._buffers.get(place)
        if out is None:
            out = self._buffers[place] = torch.empty(self.capacity, width, dtype=self._dtype)
        op = Op(kind=kind, out=out.data_ptr(), outputs=width, **numbers)
        op.inputs = 0 if x is None else x.stride(0)  # A part of a buffer has longer rows.
        for name, tensor in (
            ("input", x),
            ("weight", weight),
            ("more", more),
            ("state", state),
            ("values", values),
        ):
            setattr(op, name, None if tensor is None else tensor.data_ptr())
            self._kept.append(tensor)
        if part is not None:
            op.part = ctypes.addressof(part)
            self._kept.append(part)
        self._ops.append(op)
        return out

    def run(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        selection: Selection | None,
        given: Tensor | None = None,
    ) -> int:
        """Compute a step; its results are in the buffers.

        Args:
            token_ids: int64 [T], T at most `capacity`; -1 - i stands for row i of `given`.
            batch: where the tokens sit.
            selection: the rows to keep in the last layer; None for all.
            given: rows [G, D] in the place of embeddings, which the factor leaves alone; wider rows have what `give`
                adds behind it.

        Returns:
            How many rows of the last buffer are results.
        """
        if self._array is None:
            self._array = (Op * len(self._ops))(*self._ops)
        self._model.threads = self._library.threads
        step = self._step
        step.tokens = rows = token_ids.shape[0]
        step.token_ids = token_ids.data_ptr()
        step.given_width = 0
        if given is not None:
            assert given.is_contiguous()
            assert given.dtype == self._dtype
            step.given, step.given_width = given.data_ptr(), given.shape[1]
        step.positions = batch.positions.data_ptr()
        step.slots = batch.slot_mapping.data_ptr()
        step.state_rows = None if batch.state_rows is None else batch.state_rows.data_ptr()
        step.all.point_to(batch)
        kept = [step.adapted.point_to(batch.adapters)]
        step.num_rows = -1
        if selection is not None:
            kept.append(step.adapted_selected.point_to(selection.batch.adapters))
            step.num_rows = rows = selection.rows.shape[0]
            step.rows = selection.rows.data_ptr()
            step.selected.point_to(selection.batch)
        self._library.run(
            ctypes.byref(self._model), ctypes.byref(self._array), len(self._ops), ctypes.byref(step)
        )
        del kept
        return rows
