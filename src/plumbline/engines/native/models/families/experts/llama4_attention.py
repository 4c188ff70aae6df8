"""Read the attention of Llama 4: windows side by side, and layers with temperatures instead of a rotation."""

from __future__ import annotations

from plumbline.engines.native.models.description import Attention, HeadNorm, Rope
from plumbline.engines.native.models.families.parts import attention_bias, heads
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["CHUNKED", "llama4_mixers"]

CHUNKED = "chunked_attention"


def llama4_mixers(fields: Fields, types: tuple[str, ...], turned: list[bool]) -> list[Attention]:
    """Read the mixer of each layer, of these types, and rotated or not."""
    size, shape, bias = None, heads(fields, 128), attention_bias(fields)
    # Null means no windows, as in vLLM; transformers cannot run such a model.
    if fields.get("attention_chunk_size") is not None or not fields.has("attention_chunk_size"):
        size = fields.integer("attention_chunk_size", 8192)
    rope = read_rope(fields, 500000.0, interleaved=True)
    norm = HeadNorm(weights="none", after_rope=True) if fields.flag("use_qk_norm", True) else None
    scale, length = fields.number("attn_scale", 0.1), fields.integer("floor_scale", 8192)
    still = None
    if fields.flag("attn_temperature_tuning", True):
        # A rotation of no part of a head, for its temperatures.
        still = Rope(part=0.0, temperature=scale, temperature_shift=1, original_max_positions=length)
    return [
        Attention(
            **shape,
            **bias,
            rope=rope if turns else still,
            head_norm=norm if turns else None,
            window=size if kind == CHUNKED else None,
            tiled=kind == CHUNKED and size is not None,
        )
        for kind, turns in zip(types, turned, strict=True)
    ]
