"""Describe tiny models of images and text: each tower, with texts that run on torch and on compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import transformers

from support.weights.family_cases import HALF
from support.weights.model_families import (
    DELTA,
    DELTA_EXPERTS,
    GEMMA4,
    GEMMA4_SHARED,
    LLAMA4,
    SMALL,
    SPARSE,
    WIDE,
    WIDE_DELTA,
)

__all__ = [
    "CASES",
    "CLIP",
    "GEMMA3",
    "GEMMA4_PADDED",
    "IMAGE",
    "PIXTRAL",
    "POOLED",
    "SIGLIP",
    "TILES",
    "Case",
]

VOCAB, IMAGE = 99, 98
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
SIZES = {"image_size": 30, "patch_size": 7}
CLIP = {"model_type": "clip_vision_model", **TOWER, **SIZES}
SIGLIP = {"model_type": "siglip_vision_model", **TOWER, **SIZES}


@dataclass
class Case:
    """A model: the type of its text, its tower and what its config says about images."""

    text: str
    tower: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    text_changes: dict[str, Any] = field(default_factory=dict)
    is_compiled: bool = False
    family: str = "llava"
    sizes: tuple[tuple[int, int], ...] = ((30, 30),)
    """The heights and widths of images."""

    @property
    def name(self) -> str:
        return f"{self.family}-{self.text}-{self.tower['model_type']}{'-compiled' * self.is_compiled}"

    @property
    def random(self) -> tuple[float, float]:
        """The mean of random weights of norms of the text, which Gemma and Qwen 3.5 add one to, and of the tower."""
        return (0.0 if self.family in ("gemma3", "qwen3_5", "qwen3_5_moe") else 0.7, 0.7)

    def config(self) -> Any:
        wide = WIDE | ({"head_dim": 32} if "head_dim" in self.text_changes else {})
        text = SMALL | self.text_changes | (wide if self.is_compiled else {})
        return transformers.AutoConfig.for_model(
            self.family,
            text_config={**text, "model_type": self.text},
            vision_config=self.tower,
            **{"image_token_id" if self.family in QWEN else "image_token_index": IMAGE},
            **self.changes,
        )


GEMMA: dict[str, Any] = {"mm_tokens_per_image": 4, "boi_token_index": 96, "eoi_token_index": 97}
GEMMA_TEXT: dict[str, Any] = {
    "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 6,
}
GEMMA3 = {
    **GEMMA,
    "model_type": "gemma3",
    "text_config": SMALL | GEMMA_TEXT | {"model_type": "gemma3_text"},
    "vision_config": SIGLIP,
    "vision_feature_layer": None,
    "image_token_index": IMAGE,
}
PIXTRAL = {"model_type": "pixtral", "patch_size": 7, "head_dim": 16, "hidden_act": "silu", **TOWER}
LINES = ((14, 42), (28, 14), (42, 28), (14, 28))
POOLED: dict[str, Any] = {
    "model_type": "gemma4_vision",
    "head_dim": 16,
    "num_key_value_heads": 2,
    "patch_size": 3,
    "pooling_kernel_size": 3,
    "position_embedding_size": 300,
    "standardize": True,
    **TOWER,
}
CLIPPED = {**POOLED, "standardize": False, "use_clipped_linears": True}
IDS: dict[str, Any] = {"image_token_id": IMAGE, "boi_token_id": 96, "eoi_token_id": 97}
GEMMA4_HEADS = {"head_dim": 16, "global_head_dim": 32, "pad_token_id": 0}
GEMMA4_BOTH = {**GEMMA4_HEADS, "sliding_window": 6, "use_bidirectional_attention": "vision"}
# The second embeddings of a token are together as wide as the first one.
GEMMA4_AS_WIDE = {
    "head_dim": 32,
    "hidden_size_per_layer_input": 16,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
GEMMA4_PADDED = SMALL | GEMMA4_SHARED | GEMMA4_HEADS | {"model_type": "gemma4_text", "pad_token_id": 3}
SQUARES = ((9, 27), (18, 18), (27, 9), (18, 27))
TILES: dict[str, Any] = {
    "model_type": "llama4_vision_model",
    **TOWER,
    "intermediate_size": 128,
    "image_size": 14,
    "patch_size": 3,
    "projector_input_dim": 48,
    "projector_output_dim": 48,
    "vision_output_dim": 48,
}
CANVASES = ((14, 28), (14, 14), (28, 28), (14, 42))
QWEN: dict[str, Any] = {
    "qwen2_vl": {"embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2},
    "qwen2_5_vl": {
        "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 40, "window_size": 12,
        "fullatt_block_indexes": [1],
    },
    "qwen3_vl": {
        "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 40, "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 2],
    },
    "qwen3_5": {"hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 40, "num_position_embeddings": 16},
}  # fmt: skip
"""The tower of each version."""
QWEN["qwen3_vl_moe"], QWEN["qwen3_5_moe"] = QWEN["qwen3_vl"], QWEN["qwen3_5"]


def qwen(family: str, *, is_compiled: bool = False, **changes: Any) -> Case:
    """A case of Qwen-VL."""
    rotation = {**HALF, "partial_rotary_factor": 0.5 if family.startswith("qwen3_5") else 1.0}
    rotation |= {"mrope_section": [6, 5, 5] if is_compiled else [2, 3, 1]}
    if "qwen3" in family:
        rotation |= {"mrope_interleaved": True}
    tower = QWEN[family] | {"depth": 3, "num_heads": 2, "patch_size": 3, "model_type": f"{family}_vision"}
    if is_compiled:
        tower |= {"hidden_size" if family == "qwen2_vl" else "out_hidden_size": 64}
    text = {**changes, "rope_parameters": rotation}
    sizes = ((6, 12), (12, 6), (18, 18), (24, 12))
    return Case(f"{family}_text", tower, {}, text, is_compiled, family, sizes)


CASES = [
    Case("llama", CLIP),
    Case("llama", CLIP, {"projector_hidden_act": "gelu"}, is_compiled=True),
    Case("qwen2", SIGLIP, {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}),
    Case(
        "qwen3",
        SIGLIP,
        {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        {"head_dim": 16, "tie_word_embeddings": True},
        is_compiled=True,
    ),
    Case(
        "mistral",
        CLIP | {"hidden_act": "gelu"},
        {"vision_feature_layer": [0, -2], "multimodal_projector_bias": False},
        {"sliding_window": 21},
    ),
    Case("gemma3_text", SIGLIP, GEMMA, GEMMA_TEXT, family="gemma3"),
    Case("gemma3_text", SIGLIP, GEMMA, GEMMA_TEXT, family="gemma3", is_compiled=True),
    Case(
        "mistral",
        PIXTRAL,
        {"vision_feature_layer": [-1, -3], "vision_feature_select_strategy": "full"},
        sizes=((7, 21), (14, 7), (7, 7), (21, 14)),
    ),
    Case("mistral", PIXTRAL, {"vision_feature_layer": -2}, family="mistral3", sizes=LINES),
    Case(
        "ministral3",
        PIXTRAL | {"hidden_act": "gelu", "rope_theta": 100.0},
        {"multimodal_projector_bias": True},
        family="mistral3",
        sizes=LINES,
        is_compiled=True,
    ),
    Case("gemma4_text", POOLED, IDS, GEMMA4 | GEMMA4_BOTH, family="gemma4", sizes=SQUARES),
    Case("gemma4_text", CLIPPED, IDS, GEMMA4_SHARED | GEMMA4_HEADS, family="gemma4", sizes=SQUARES),
    Case(
        "gemma4_text",
        CLIPPED,
        IDS,
        GEMMA4_SHARED | GEMMA4_BOTH | GEMMA4_AS_WIDE,
        family="gemma4",
        sizes=SQUARES,
        is_compiled=True,
    ),
    Case("llama4_text", TILES, {}, LLAMA4, family="llama4", sizes=CANVASES),
    Case(
        "llama4_text",
        TILES,
        {},
        LLAMA4 | {"head_dim": 32, "num_experts_per_tok": 2},
        family="llama4",
        sizes=CANVASES,
        is_compiled=True,
    ),
    qwen("qwen2_vl"),
    qwen("qwen2_5_vl", is_compiled=True),
    qwen("qwen3_vl", head_dim=12),
    qwen("qwen3_vl", is_compiled=True, head_dim=32),
    qwen("qwen3_vl_moe", head_dim=12, **SPARSE, num_experts=4),
    qwen("qwen3_5", is_compiled=True, **DELTA | WIDE_DELTA),
    qwen("qwen3_5_moe", **DELTA_EXPERTS),
]
