"""Describe parts of a model to the compiled kernels, as structures that the operations of a program point to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from torch import Tensor

from plumbline_kernels.cpu.library import PackedWeight
from plumbline_kernels.delta import DeltaShape
from plumbline_kernels.experts import Routing
from plumbline_kernels.rope_kv import HeadNorms

__all__ = ["ACTIVATIONS", "Adapters", "Delta", "Experts", "Heads", "Latent"]

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "swiglu_oss": 2, "relu2": 3}
"""`Activation` in rows.h."""


class Heads(ctypes.Structure):
    """An attention; `Heads` in rows.h."""

    _fields_ = (
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("cos_sin", ctypes.c_void_p),
        ("temperature", ctypes.c_void_p),
        ("norms", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("centred", ctypes.c_int32),
        ("whole", ctypes.c_int32),
        ("after", ctypes.c_int32),
        ("values", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("tiled", ctypes.c_int32),
        ("causal", ctypes.c_int32),
    )

    @classmethod
    def of(
        cls,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        scale: float,
        cos_sin: Tensor | None = None,
        norms: HeadNorms | None = None,
        temperature: Tensor | None = None,
        window: int | None = None,
        tiled: bool = False,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        causal: bool = False,
    ) -> Heads:
        """Describe an attention; the arguments are those of `rope_kv_write` and `paged_attention`.

        With `causal`, tokens attend to none after them, whatever `AttentionBatch.reach` says.
        """
        pointed = (cos_sin, temperature, None if norms is None else norms.weights.contiguous(), sinks)
        self = cls(heads, kv_heads, head_dim, *(None if x is None else x.data_ptr() for x in pointed))
        self.scale, self.softcap, self.window = scale, softcap or 0.0, window or 0
        self.tiled, self.causal = tiled, causal
        if norms is not None:
            self.eps, self.centred, self.whole = norms.eps, norms.centred, norms.whole
            self.after, self.values = norms.after, norms.values
        # What the structure points to must live as long as it does.
        self.kept = pointed
        return self


class Matrix(ctypes.Structure):
    """A packed weight with its bias; `Matrix` in experts.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("shifts", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("bits", ctypes.c_int64),
    )

    @classmethod
    def of(cls, weight: PackedWeight, bias: Tensor | None) -> Matrix:
        """Point to a weight and a bias; the structure keeps neither alive."""
        pointed = (weight.data, bias, weight.scales, weight.shifts)
        addresses = (None if x is None else x.data_ptr() for x in pointed)
        return cls(*addresses, weight.outputs, weight.inputs, weight.group, weight.bits)


Projection = tuple[PackedWeight, Tensor | None]
"""A weight and a bias."""


class Pair(ctypes.Structure):
    """The two projections of an adapter at a linear layer; `Pair` in adapters.h."""

    _fields_ = (("down", Matrix), ("up", Matrix))


class Adapters(ctypes.Structure):
    """The adapters of a linear layer by their slots; `Adapters` in adapters.h."""

    _fields_ = (("pairs", ctypes.c_void_p),)
    kept: ctypes.Array[Pair]
    weights: dict[int, tuple[PackedWeight, PackedWeight]]
    """By slot, what the pairs point to."""

    @classmethod
    def of(cls, capacity: int) -> Adapters:
        """Make the table of a layer; no slot has projections yet."""
        pairs = (Pair * capacity)()
        self = cls(ctypes.addressof(pairs))
        self.kept, self.weights = pairs, {}
        return self

    def put(self, slot: int, down: PackedWeight, up: PackedWeight) -> None:
        """Give a slot its projections, [rank, in] and [out, rank]."""
        self.weights[slot] = (down, up)
        self.kept[slot] = Pair(Matrix.of(down, None), Matrix.of(up, None))

    def clear(self, slot: int) -> None:
        """Take the projections of a slot away, if it has any; no step may be running."""
        self.kept[slot] = Pair()
        self.weights.pop(slot, None)


class Experts(ctypes.Structure):
    """A block of experts; `Experts` in experts.h."""

    _fields_ = (
        ("router", Matrix),
        ("correction", ctypes.c_void_p),
        ("shared_gate", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
        ("gate_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("number", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("chosen_groups", ctypes.c_int64),
        ("sigmoid", ctypes.c_int32),
        ("late_softmax", ctypes.c_int32),
        ("best_two", ctypes.c_int32),
        ("normalised", ctypes.c_int32),
        ("of_inputs", ctypes.c_int32),
        ("floor", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("activation", ctypes.c_int32),
    )

    @classmethod
    def of(
        cls,
        routing: Routing,
        router: Projection,
        gate_up: Sequence[Projection],
        down: Sequence[Projection],
        activation: str,
        *,
        correction: Tensor | None = None,
        shared_gate: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> Experts:
        """Describe a block of experts.

        Args:
            routing: how tokens choose.
            router: fp32, [E, D].
            gate_up: for each expert [2 * I, D], or without a gate [I, D].
            down: for each expert [D, I].
            activation: of `ACTIVATIONS`.
            correction: see `route`.
            shared_gate: fp32 [D], whose product with a token is the gate of the shared experts before the sigmoid.
            factors: fp32 [E], on the weights of tokens.
        """
        arrays = [(Matrix * len(parts))(*(Matrix.of(*part) for part in parts)) for parts in (gate_up, down)]
        self = cls(router=Matrix.of(*router), number=len(gate_up), activation=ACTIVATIONS[activation])
        for name, value in routing._asdict().items():
            setattr(self, name, value)
        self.correction = None if correction is None else correction.data_ptr()
        self.shared_gate = None if shared_gate is None else shared_gate.data_ptr()
        self.factors = None if factors is None else factors.data_ptr()
        self.gate_up, self.down = (ctypes.addressof(array) for array in arrays)
        self.kept = (arrays, router, gate_up, down, correction, shared_gate, factors)
        return self


class Latent(ctypes.Structure):
    """A latent attention; `Latent` in latent.h."""

    _fields_ = (
        ("cos_sin", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("key_dim", ctypes.c_int64),
        ("rope_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )

    @classmethod
    def of(
        cls,
        cos_sin: Tensor,
        norm: Tensor,
        eps: float,
        keys: Sequence[Projection],
        values: Sequence[Projection],
    ) -> Latent:
        """Describe a latent attention.

        Args:
            cos_sin: fp32 [positions, rope].
            norm: the weight of the latents' norm, fp32 [rank].
            eps: of the norm.
            keys: for each head [rank, key_dim].
            values: for each head [value_dim, rank].
        """
        arrays = [(Matrix * len(parts))(*(Matrix.of(*part) for part in parts)) for parts in (keys, values)]
        addresses = [ctypes.addressof(array) for array in arrays]
        self = cls(cos_sin.data_ptr(), norm.data_ptr(), *addresses, len(keys), eps=eps)
        (key, _), (value, _) = keys[0], values[0]
        self.rank, self.key_dim, self.value_dim = key.outputs, key.inputs, value.outputs
        self.rope_dim = cos_sin.shape[1]
        self.kept = (arrays, cos_sin, norm, keys, values)
        return self


class Delta(ctypes.Structure):
    """A gated delta net or a state space; `Delta` in delta.h."""

    _fields_ = (
        ("conv", ctypes.c_void_p),
        ("conv_bias", ctypes.c_void_p),
        ("rates", ctypes.c_void_p),
        ("shifts", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("skip", ctypes.c_void_p),
        ("key_heads", ctypes.c_int64),
        ("value_heads", ctypes.c_int64),
        ("key_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("taps", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("corrects", ctypes.c_int32),
    )

    @classmethod
    def of(
        cls,
        shape: DeltaShape,
        conv: Tensor,
        rates: Tensor,
        shifts: Tensor,
        norm: Tensor,
        eps: float,
        *,
        conv_bias: Tensor | None = None,
        skip: Tensor | None = None,
    ) -> Delta:
        """Describe a delta net; all tensors are fp32.

        Args:
            shape: its heads.
            conv: [channels, taps], see `causal_conv`.
            rates: [value_heads], see `delta_gates`.
            shifts: [value_heads].
            norm: [value_dim], see `gated_norm`; of a state space [value_heads * value_dim], see `gated_group_norm`.
            eps: of the norm.
            conv_bias: [channels].
            skip: [value_heads], of a state space: factors on values that are added to results.
        """
        pointed = (conv.t().contiguous(), conv_bias, rates, shifts, norm, skip)
        heads = (shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim)
        addresses = (None if x is None else x.data_ptr() for x in pointed)
        self = cls(*addresses, *heads, conv.shape[1], eps, shape.corrects)
        self.kept = pointed
        return self
