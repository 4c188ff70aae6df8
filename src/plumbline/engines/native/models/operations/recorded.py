"""Run the loop over layers as one call of the compiled CPU kernels, recorded at the first step."""

from __future__ import annotations

from dataclasses import asdict

from torch import Tensor

from plumbline.engines.native.models.adapters.layers import CompiledAdapters
from plumbline.engines.native.models.description import Activation, Norm
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
from plumbline.engines.native.models.weights import ExpertsWeights, SelectiveWeights, ShortConvWeights
from plumbline_kernels.attention import AttentionBatch, RowSelection
from plumbline_kernels.cpu import layout as cpu
from plumbline_kernels.cpu import states as states_layout
from plumbline_kernels.cpu.library import Library, PackedWeight
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
        selection: RowSelection | None,
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
    """Record `Operations` in a program; the tensors that it returns are the buffers of the results."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._fill = program.fill

    def embed(self, table: Tensor | PackedWeight, factor: float) -> Tensor:
        if isinstance(table, Tensor):
            operation, width = cpu.EmbedOp(table=table, width=table.shape[1], factor=factor), table.shape[1]
        else:
            width = table.inputs
            operation = cpu.EmbedOp(packed=table.matrix(None), width=width, factor=factor)
        return self._fill(operation, width)

    def give(self, residual: Tensor, part: int) -> Tensor:
        self._program.record(cpu.GiveOp(residual=residual, width=residual.shape[1], part=part))
        return residual

    def place(self, residual: Tensor, table: Tensor) -> Tensor:
        self._program.record(cpu.PlaceOp(residual=residual, table=table, width=residual.shape[1]))
        return residual

    def norm_embedded(self, residual: Tensor, norm: PreparedNorm) -> Tensor:
        width = residual.shape[1]
        self._program.record(cpu.AddNormOp(x=residual, out=residual, norm=_norm(norm), width=width))
        return residual

    def clip(self, x: Tensor, size: float) -> Tensor:
        self._program.record(cpu.ClipOp(rows=x, width=x.shape[1], size=size))
        return x

    def norm(self, x: Tensor, norm: PreparedNorm) -> Tensor:
        return self._fill(cpu.AddNormOp(x=x, norm=_norm(norm), width=x.shape[1]), x.shape[1])

    def add(self, x: Tensor, residual: Tensor, factor: float, scale: float) -> Tensor:
        alone, width = cpu.NormStruct(weight=None), x.shape[1]
        self._program.record(
            cpu.AddNormOp(x=x, residual=residual, norm=alone, width=width, factor=factor, scale=scale)
        )
        return residual

    def add_norm(
        self, x: Tensor, residual: Tensor, norm: PreparedNorm, factor: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        width = x.shape[1]
        operation = cpu.AddNormOp(
            x=x, residual=residual, norm=_norm(norm), width=width, factor=factor, scale=scale
        )
        return self._fill(operation, width), residual

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        outputs, inputs = layer.shape
        result = self._fill(cpu.LinearOp(x=x, matrix=_matrix(layer)), outputs)
        if layer.adapters is not None:
            assert isinstance(layer.adapters, CompiledAdapters)
            pairs = layer.adapters.table.pairs
            self._program.record(cpu.AdaptOp(pairs=pairs, x=x, out=result, inputs=inputs, outputs=outputs))
        return result

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        shape, (keys, values) = heads.attention, cache
        operation = cpu.RopeOp(heads=_heads(heads), qkv=qkv, stride=qkv.stride(0), keys=keys, values=values)
        return self._fill(operation, shape.heads * shape.head_dim)

    def rotate(self, q: Tensor, heads: Heads) -> Tensor:
        return self._fill(cpu.RopeOp(heads=_heads(heads, kv_heads=0), qkv=q, stride=q.stride(0)), q.shape[1])

    def select(
        self, q: Tensor, residual: Tensor, x: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        for kept in (q, None if x is residual else x, gate, residual):
            if kept is not None:
                stride, last = kept.stride(0), kept is residual
                self._program.record(cpu.KeepOp(rows=kept, width=kept.shape[1], stride=stride, last=last))
        return q, residual, x, gate

    def attend(self, q: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        keys, values = cache
        return self._fill(cpu.AttendOp(heads=_heads(heads), q=q, keys=keys, values=values), q.shape[1])

    def gate(self, attended: Tensor, gate: Tensor) -> Tensor:
        return self._gate(attended, gate, by_gelu=False)

    def gated_inputs(self, gate: Tensor, given: Tensor) -> Tensor:
        return self._gate(gate, given, by_gelu=True)

    def _gate(self, x: Tensor, gates: Tensor, by_gelu: bool) -> Tensor:
        width = x.shape[1]
        operation = cpu.GateOp(x=x, gates=gates, stride=gates.stride(0), width=width, by_gelu=by_gelu)
        return self._fill(operation, width)

    def activate(self, x: Tensor, activation: Activation, gated: bool, curve: Tensor | None = None) -> Tensor:
        width, kind = x.shape[1] // (2 if gated else 1), cpu.ACTIVATIONS[activation]
        return self._fill(cpu.ActivateOp(x=x, width=width, activation=kind, gated=gated, curve=curve), width)

    def delta(self, projected: Tensor, states: KVCache, heads: DeltaHeads) -> Tensor:
        inputs, matrices = states
        weights, conv = heads.weights, heads.weights.conv
        net = states_layout.DeltaStruct(
            conv=conv.t().contiguous(),
            conv_bias=weights.conv_bias,
            rates=weights.rates,
            shifts=weights.shifts,
            norm=weights.norm,
            skip=weights.skip,
            taps=conv.shape[1],
            eps=heads.net.eps,
            strength=heads.net.strength,
            **asdict(heads.shape),
        )
        stride = projected.stride(0)
        operation = states_layout.DeltaOp(
            delta=net, projected=projected, stride=stride, inputs=inputs, matrices=matrices
        )
        return self._fill(operation, heads.shape.value_heads * heads.shape.value_dim)

    def short_conv(self, projected: Tensor, states: KVCache, weights: ShortConvWeights) -> Tensor:
        width, taps = weights.conv.shape
        operation = states_layout.ShortConvOp(
            projected=projected,
            conv=weights.conv.t().contiguous(),
            conv_bias=weights.conv_bias,
            inputs=states[0],
            width=width,
            taps=taps,
        )
        return self._fill(operation, width)

    def selective(self, projected: Tensor, states: KVCache, weights: SelectiveWeights) -> Tensor:
        raise AssertionError("`compiled_problem` refuses such models")

    def latent_write(self, q: Tensor, kv: Tensor, cache: KVCache, heads: LatentHeads) -> Tensor:
        width = heads.latent.heads * kv.shape[1]
        return self._fill(cpu.LatentWriteOp(latent=_latent(heads), q=q, kv=kv, cache=cache[0]), width)

    def latent_values(self, attended: Tensor, heads: LatentHeads) -> Tensor:
        latent = _latent(heads)
        return self._fill(cpu.LatentValuesOp(latent=latent, x=attended), latent.heads * latent.value_dim)

    def token_inputs(self, embedded: Tensor, inputs: TokenInputs) -> Tensor:
        table, width = inputs.weights.embedding, len(inputs.norm.weight)
        whole = table.shape[1]
        projected = self.linear(embedded, inputs.weights.projection)
        own = self._fill(cpu.EmbedOp(table=table, width=whole, factor=inputs.factor, second=True), whole)
        operation = cpu.TokenInputsOp(
            x=projected,
            second=own,
            norm=_norm(inputs.norm),
            layers=whole // width,
            width=width,
            factor=embedded.shape[1] ** -0.5,
            scale=2.0**-0.5,
        )
        return self._fill(operation, whole).view(-1, whole // width, width)

    def experts(
        self, x: Tensor, weights: ExpertsWeights, shared: Tensor | None, asked: Tensor | None = None
    ) -> Tensor:
        block = cpu.ExpertsStruct(
            router=_matrix(weights.router),
            correction=weights.correction,
            shared_gate=weights.shared_gate,
            factors=weights.factors,
            shared_scale=weights.shared_scale,
            gate_up=_matrices(weights.gate_up),
            down=_matrices(weights.down),
            activation=cpu.ACTIVATIONS[weights.activation],
            number=weights.router.shape[0],
            **weights.routing._asdict(),
        )
        asked = x if asked is None else asked
        return self._fill(
            cpu.ExpertsOp(experts=block, x=x, asked=asked, shared=shared, width=x.shape[1]), x.shape[1]
        )


def _matrix(layer: Linear) -> cpu.MatrixStruct:
    assert layer.packed is not None, "the model was loaded for these kernels"
    return layer.packed.matrix(layer.bias)


def _matrices(layers: object) -> list[cpu.MatrixStruct]:
    assert isinstance(layers, list)
    return [_matrix(layer) for layer in layers]


def _norm(norm: PreparedNorm) -> cpu.NormStruct:
    centred = norm.norm.kind == "layer"
    return cpu.NormStruct(weight=norm.weight, bias=norm.bias, eps=norm.norm.eps, centred=centred)


def _latent(heads: LatentHeads) -> cpu.LatentStruct:
    shape = heads.latent
    return cpu.LatentStruct(
        cos_sin=heads.cos_sin,
        norm=_norm(heads.norm),
        keys=_matrices(heads.keys),
        values=_matrices(heads.values),
        heads=shape.heads,
        rank=shape.rank,
        key_dim=shape.key_dim,
        rope_dim=heads.cos_sin.shape[1],
        value_dim=shape.value_dim,
    )


def _heads(heads: Heads, kv_heads: int | None = None) -> cpu.HeadsStruct:
    shape = heads.attention
    return cpu.HeadsStruct(
        heads=shape.heads,
        kv_heads=shape.kv_heads if kv_heads is None else kv_heads,
        dim=shape.head_dim,
        cos_sin=heads.cos_sin,
        temperature=heads.temperature,
        sinks=heads.sinks,
        scale=shape.scale,
        softcap=shape.softcap,
        window=shape.window,
        tiled=shape.tiled,
        causal=shape.causal,
        **({} if heads.norms is None else heads.norms._asdict()),
    )
