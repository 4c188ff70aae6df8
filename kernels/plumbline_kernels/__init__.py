"""Provide the engine's operations as Triton kernels, each with a reference implementation in torch (`*_torch`).

The reference implementation runs on CPU and is what the tests compare the kernel with. The package imports nothing
from the server. One module per group of operations:

    norm       RMS norm, alone and fused with the residual add
    rope_kv    rotary embedding, fused with writing keys and values into the paged cache
    attention  attention over the paged cache; its Triton kernels are in `_attention_triton`
    swiglu     the gated activation
    logits     penalties and grammar bitmasks
    sampling   temperature, top-k, top-p, min-p and the draw
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
