"""Run the loop over layers as one call of the compiled CPU kernels, recorded at the first step."""

from __future__ import annotations

from torch import Tensor

from plumbline.engines.native.models.description import Attention, ModelDescription, Norm
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.operations import Heads, KVCache, Loop, NormWeights
from plumbline_kernels.attention import AttentionBatch, Selection
from plumbline_kernels.cpu.library import Library
from plumbline_kernels.cpu.program import Program

__all__ = ["RecordedBackend"]

_CAPACITY = 64
"""Tokens that the first program has buffers for; a larger step records one for twice as many at least."""


class RecordedBackend:
    """Implement `Backend` with a program of compiled kernels."""

    def __init__(self, description: ModelDescription, cos_sin: Tensor, library: Library) -> None:
        self._description, self._cos_sin, self._library = description, cos_sin, library
        self._program: tuple[Program, Tensor] | None = None
        self._cache: Tensor | None = None

    def norm(self, norm: Norm, weight: Tensor) -> NormWeights:
        """Keep the weight as it is."""
        return NormWeights(norm, weight)

    def heads(
        self, attention: Attention, eps: float, cos_sin: Tensor, norms: tuple[Tensor, Tensor] | None
    ) -> Heads:
        """Keep the weights as they are."""
        return Heads(attention, eps, cos_sin, norms)

    def run(
        self,
        loop: Loop,
        token_ids: Tensor,
        batch: AttentionBatch,
        caches: list[KVCache],
        selection: Selection | None,
    ) -> Tensor:
        """Run a step; the next step overwrites the result."""
        tokens = token_ids.shape[0]
        capacity = _CAPACITY if self._program is None else self._program[0].capacity
        if self._program is None or tokens > capacity or caches[0][0] is not self._cache:
            # Memory that no step touches is never used, so large buffers cost nothing until they are needed.
            self._program = self._record(
                loop, caches, capacity if tokens <= capacity else max(tokens, 2 * capacity)
            )
        program, result = self._program
        return result[: program.run(token_ids, batch, selection)]

    def _record(self, loop: Loop, caches: list[KVCache], capacity: int) -> tuple[Program, Tensor]:
        shape = self._description.layers[0].mixer
        self._cache = caches[0][0]
        program = Program(
            self._library,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            block_size=self._cache.shape[1],
            cos_sin=self._cos_sin,
            eps=self._description.norm.eps,
            dtype=self._cache.dtype,
            capacity=capacity,
        )
        return program, loop(_Recorder(program), caches)


class _Recorder:
    """Adapt a program to `Operations`; the tensors that it returns are the buffers of the results."""

    def __init__(self, program: Program) -> None:
        self.embed = program.embed
        self.select = program.select
        self.silu_mul = program.silu_mul
        self._program = program

    def norm(self, x: Tensor, norm: NormWeights) -> Tensor:
        return self._program.norm(x, norm.weight)

    def add_norm(self, x: Tensor, residual: Tensor, norm: NormWeights) -> tuple[Tensor, Tensor]:
        return self._program.add_norm(x, residual, norm.weight)

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        assert layer.packed is not None, "the model was loaded for these kernels"
        return self._program.linear(x, layer.packed, layer.bias)

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        return self._program.rope_kv_write(qkv, cache, *(heads.norms or (None, None)))

    def attend(self, q: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        return self._program.attend(q, cache, heads.attention.window)
