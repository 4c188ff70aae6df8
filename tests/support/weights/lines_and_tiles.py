"""Configs of tiny models that read images of any shape, in lines or tiles, with the files of their processors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MAKERS", "MARKERS", "NAMED"]

Made = tuple[dict[str, Any], dict[str, Any]]
"""The config, and the files of the processor by name."""

MARKERS = {
    "mistral3": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "llama4": (
        "<|image|>",
        "<|patch|>",
        "<|image_start|>",
        "<|image_end|>",
        "<|tile_x_separator|>",
        "<|tile_y_separator|>",
    ),
    "gemma4": ("<|image|>", "<|image>", "<image|>", "<|audio|>", "<|audio>", "<audio|>", "<|video|>"),
}
"""The special tokens of each; the first one is an image in a prompt."""
NAMED = {
    "gemma4": {
        f"{name}_token": marker
        for name, marker in zip(
            ("image", "boi", "eoi", "audio", "boa", "eoa"), MARKERS["gemma4"], strict=False
        )
    }
}
"""What `tokenizer_config.json` calls them."""


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


def _gemma4(ids: Mapping[str, int], text: dict[str, Any]) -> Made:
    heads = {"head_dim": 32, "global_head_dim": 32, "hidden_size_per_layer_input": 16, "pad_token_id": 0}
    own = {
        "tie_word_embeddings": False,
        "vocab_size_per_layer_input": text["vocab_size"],
        "sliding_window": 16,
        "num_hidden_layers": 4,
    }
    kinds = ["sliding_attention", "full_attention"] * 2
    config = {
        "model_type": "gemma4",
        "tie_word_embeddings": False,
        "architectures": ["Gemma4ForConditionalGeneration"],
        "image_token_id": ids["<|image|>"],
        "boi_token_id": ids["<|image>"],
        "eoi_token_id": ids["<image|>"],
        "audio_token_id": ids["<|audio|>"],
        "video_token_id": ids["<|video|>"],
        "audio_config": None,
        "text_config": {
            "model_type": "gemma4_text",
            **text,
            **heads,
            **own,
            "layer_types": kinds,
            "num_kv_shared_layers": 2,
            "use_bidirectional_attention": "vision",
        },
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "pooling_kernel_size": 3,
            "use_clipped_linears": True,
        },
    }
    images = {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70, "patch_size": 4}
    processor = {
        "processor_class": "Gemma4Processor",
        "image_seq_length": 70,
        "image_processor": images,
        "video_processor": {"video_processor_type": "Gemma4VideoProcessor"},
        "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
    }
    return config, {"processor_config.json": processor}


def _llama4(ids: Mapping[str, int], text: dict[str, Any]) -> Made:
    config = {
        "model_type": "llama4",
        "architectures": ["Llama4ForConditionalGeneration"],
        "image_token_index": ids["<|patch|>"],
        "boi_token_index": ids["<|image_start|>"],
        "eoi_token_index": ids["<|image_end|>"],
        "text_config": {
            "model_type": "llama4_text",
            **text,
            "head_dim": 32,
            "intermediate_size_mlp": 64,
            "num_local_experts": 2,
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 32,
        },
        "vision_config": {
            "model_type": "llama4_vision_model",
            "hidden_size": 32,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 7,
            "projector_input_dim": 48,
            "projector_output_dim": 48,
            "vision_output_dim": 48,
        },
    }
    images = {
        "image_processor_type": "Llama4ImageProcessor",
        "max_patches": 4,
        "size": {"height": 28, "width": 28},
    }
    processor = {"processor_class": "Llama4Processor", "patch_size": 7, "pixel_shuffle_ratio": 0.5}
    return config, {"preprocessor_config.json": images, "processor_config.json": processor}


MAKERS = {"mistral3": _mistral3, "gemma4": _gemma4, "llama4": _llama4}
"""By the type of the model; each takes the ids of special tokens and the sizes of the text."""
