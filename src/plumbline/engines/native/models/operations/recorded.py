"""Run the loop over layers as one call of the compiled CPU kernels, recorded at the first step."""

from __future__ import annotations

from torch import Tensor

from plumbline.engines.native.models.adapters.layers import CompiledAdapters
from plumbline.engines.native.models.description import Norm
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.operations.interface import (
    DeltaHeads,
    Heads,
    KVCache,
    LatentHeads,
    Loop,
    PreparedNorm,
    TokenInputs,
)
from plumbline.engines.native.models.weights import ExpertsWeights
from plumbline_kernels.attention import AttentionBatch, Selection
from plumbline_kernels.cpu.library import Library, PackedWeight
from plumbline_kernels.cpu.parts import Delta, Experts, Latent
from plumbline_kernels.cpu.parts import Heads as CompiledHeads
from plumbline_kernels.cpu.program import Program

__all__ = ["RecordedBackend"]

_CAPACITY = 64
"""Tokens that the first program has buffers for; a larger step records one for twice as many at least."""


class RecordedBackend:
    """Implement `Backend` with a program of compiled kernels."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._recorded: tuple[Program, Tensor, Tensor] | None = None
        """The program, its result, and a cache that it writes to."""

    def norm(self, norm: Norm, weight: Tensor, bias: Tensor | None) -> PreparedNorm:
        """Keep the weights as they are."""
        return PreparedNorm(norm, weight, bias)

    def run(
        self,
        loop: Loop,
        token_ids: Tensor,
        batch: AttentionBatch,
        caches: list[KVCache],
        selection: Selection | None,
        given: Tensor | None = None,
    ) -> Tensor:
        """Run a step; the next step overwrites the result."""
        tokens, cache = token_ids.shape[0], caches[0][0]
        # Read once: a thread that an engine has given up on may still run a step, on the cache before.
        recorded = self._recorded
        capacity = _CAPACITY if recorded is None else recorded[0].capacity
        if recorded is None or tokens > capacity or cache is not recorded[2]:
            # Memory that no step touches is never used, so large buffers cost nothing until they are needed.
            program, result = self._record(
                loop, caches, capacity if tokens <= capacity else max(tokens, 2 * capacity)
            )
            recorded = self._recorded = program, result, cache
        program, result, _ = recorded
        return result[: program.run(token_ids, batch, selection, given)]

    def _record(self, loop: Loop, caches: list[KVCache], capacity: int) -> tuple[Program, Tensor]:
        # States have no blocks; a model of them alone has no attention that would ask.
        block_size = next((keys.shape[1] for keys, _ in caches if keys.dim() == 4), 1)
        program = Program(self._library, block_size=block_size, dtype=caches[0][0].dtype, capacity=capacity)
        return program, loop(_Recorder(program), caches)


class _Recorder:
    """Adapt a program to `Operations`; the tensors that it returns are the buffers of the results."""

    def __init__(self, program: Program) -> None:
        self.embed, self.give = program.embed, program.give
        self.add = program.add
        self.activate = program.activate
        self.gate = program.gate
        self.gated_inputs = program.gated_inputs
        self._program = program

    def norm(self, x: Tensor, norm: PreparedNorm) -> Tensor:
        return self._program.norm(x, norm.weight, norm.bias, norm.norm.eps, norm.norm.kind == "layer")

    def add_norm(
        self, x: Tensor, residual: Tensor, norm: PreparedNorm, factor: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        centred = norm.norm.kind == "layer"
        return self._program.add_norm(
            x, residual, norm.weight, norm.bias, norm.norm.eps, centred, factor, scale
        )

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        result = self._program.linear(x, *_projection(layer))
        if layer.adapters is not None:
            assert isinstance(layer.adapters, CompiledAdapters)
            self._program.adapt(x, result, layer.adapters.table)
        return result

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        return self._program.rope_kv_write(qkv, cache, _structure(heads))

    def select(
        self, q: Tensor, residual: Tensor, x: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        self._program.select(q, residual, *([] if x is residual else [x]), *([] if gate is None else [gate]))
        return q, residual, x, gate

    def delta(self, projected: Tensor, states: KVCache, heads: DeltaHeads) -> Tensor:
        return self._program.delta(projected, states, _delta(heads))

    def attend(self, q: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        return self._program.attend(q, cache, _structure(heads))

    def latent_write(self, q: Tensor, kv: Tensor, cache: KVCache, heads: LatentHeads) -> Tensor:
        return self._program.latent_write(q, kv, cache[0], _latent(heads))

    def latent_values(self, attended: Tensor, heads: LatentHeads) -> Tensor:
        return self._program.latent_values(attended, _latent(heads))

    def rotate(self, q: Tensor, heads: Heads) -> Tensor:
        return self._program.rotate(q, _structure(heads, kv_heads=0))

    def token_inputs(self, embedded: Tensor, inputs: TokenInputs) -> Tensor:
        weights, norm = inputs.weights, inputs.norm
        projected = self.linear(embedded, weights.projection)
        scale = embedded.shape[1] ** -0.5
        return self._program.token_inputs(
            projected, weights.embedding, inputs.factor, norm.weight, norm.norm.eps, scale
        )

    def experts(
        self, x: Tensor, weights: ExpertsWeights, shared: Tensor | None, asked: Tensor | None = None
    ) -> Tensor:
        assert isinstance(weights.gate_up, list)
        assert isinstance(weights.down, list)
        block = Experts.of(
            weights.routing,
            _projection(weights.router),
            [_projection(layer) for layer in weights.gate_up],
            [_projection(layer) for layer in weights.down],
            weights.activation,
            correction=weights.correction,
            shared_gate=weights.shared_gate,
            factors=weights.factors,
        )
        return self._program.experts(x, block, shared, asked)


def _projection(layer: Linear) -> tuple[PackedWeight, Tensor | None]:
    assert layer.packed is not None, "the model was loaded for these kernels"
    return layer.packed, layer.bias


def _latent(heads: LatentHeads) -> Latent:
    assert isinstance(heads.keys, list)
    assert isinstance(heads.values, list)
    keys, values = ([_projection(layer) for layer in layers] for layers in (heads.keys, heads.values))
    return Latent.of(heads.cos_sin, heads.norm.weight, heads.norm.norm.eps, keys, values)


def _delta(heads: DeltaHeads) -> Delta:
    found = heads.weights
    return Delta.of(
        heads.shape,
        found.conv,
        found.rates,
        found.shifts,
        found.norm,
        heads.net.eps,
        conv_bias=found.conv_bias,
        skip=found.skip,
    )


def _structure(heads: Heads, kv_heads: int | None = None) -> CompiledHeads:
    shape = heads.attention
    return CompiledHeads.of(
        shape.heads,
        shape.kv_heads if kv_heads is None else kv_heads,
        shape.head_dim,
        scale=shape.scale,
        cos_sin=heads.cos_sin,
        norms=heads.norms,
        temperature=heads.temperature,
        window=shape.window,
        tiled=shape.tiled,
        softcap=shape.softcap,
        sinks=heads.sinks,
        causal=shape.causal,
    )
