"""Configs of tiny models that read images of any shape, in lines or tiles, with the files of their processors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MAKERS", "MARKERS"]

Made = tuple[dict[str, Any], dict[str, Any]]
"""The config, and the files of the processor by name."""

MARKERS = {"mistral3": ("[IMG]", "[IMG_BREAK]", "[IMG_END]")}
"""The special tokens of each; the first one is an image in a prompt."""


def _mistral3(ids: Mapping[str, int], text: dict[str, Any]) -> Made:
    config = {
        "model_type": "mistral3",
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_index": ids["[IMG]"],
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        "tie_word_embeddings": False,
        "text_config": {"model_type": "mistral", "head_dim": 32, "sliding_window": None, **text},
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 16,
            "image_size": 140,
            "patch_size": 14,
            "hidden_act": "silu",
            "rope_theta": 10000.0,
        },
    }
    images = {
        "image_processor_type": "PixtralImageProcessor",
        "processor_class": "PixtralProcessor",
        "patch_size": 14,
        "size": {"longest_edge": 140},
    }
    processor = {"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2}
    return config, {"preprocessor_config.json": images, "processor_config.json": processor}


MAKERS = {"mistral3": _mistral3}
"""By the type of the model; each takes the ids of special tokens and the sizes of the text."""
