"""Triton kernels of Plumbline, each with a torch twin in the same file; this package imports nothing of ours.

The twin is the execution path on CPU, the oracle of the tests and the documentation of the kernel.
"""

from plumbline_kernels._backend import use_triton
from plumbline_kernels.attention import AttentionBatch, paged_attention
from plumbline_kernels.norm import add_rms_norm, rms_norm
from plumbline_kernels.rope_kv import plan_rope, rope_kv_write
from plumbline_kernels.sampling import apply_bitmask, apply_penalties, sample
from plumbline_kernels.swiglu import silu_mul

__all__ = [
    "AttentionBatch",
    "add_rms_norm",
    "apply_bitmask",
    "apply_penalties",
    "paged_attention",
    "plan_rope",
    "rms_norm",
    "rope_kv_write",
    "sample",
    "silu_mul",
    "use_triton",
]
