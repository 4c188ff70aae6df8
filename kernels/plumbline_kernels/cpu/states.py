"""Declare the operations that keep a state of one size for a sequence."""

from typing import TYPE_CHECKING, Annotated

from plumbline_kernels.cpu.addresses import Floats, Out, Rows
from plumbline_kernels.cpu.structs import KernelOperation, Struct, declare

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DeltaOp", "DeltaStruct", "ShortConvOp"]


@declare
class DeltaStruct(Struct):
    """A gated delta net or a state space."""

    conv: Floats  # [taps, channels]: the transpose of what `causal_conv` takes
    conv_bias: Floats = None  # [channels]
    rates: Floats  # [value_heads], exp(A_log); see `delta_gates`
    shifts: Floats  # [value_heads], dt_bias
    norm: Floats  # [value_dim]; of a state space [value_heads * value_dim], or None for no norm
    skip: Floats = None  # [value_heads], D of a state space: its factors on values are added to results
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    eps: float
    strength: float = 1.0  # the largest one of a correction
    corrects: bool  # whether it is a delta net, and not a state space
    tiled: bool = False  # see `DeltaShape`


@declare
class DeltaOp(KernelOperation):
    """Run a delta net on its projection and its states, [T, HV * value_dim]."""

    delta: DeltaStruct
    projected: Rows  # [T, stride]: queries, keys and values; gates; strengths, if it corrects; decays
    stride: int
    inputs: Out  # [rows, taps - 1, channels]
    matrices: Annotated["Tensor", "float*"]  # [rows, value_heads, key_dim, value_dim]
    out: Out = None


@declare
class ShortConvOp(KernelOperation):
    """Run a gated convolution on its projection [T, 3 * width]: gates of inputs, gates of results, inputs."""

    projected: Rows
    conv: Floats  # [taps, width]
    conv_bias: Floats = None  # [width]
    inputs: Out  # [rows, taps - 1, width], gated
    width: int
    taps: int
    out: Out = None
