"""Configs and processors of Qwen-VL as releases have them."""

from __future__ import annotations

from typing import Any

from support.weights.released import SHARED, shape

__all__ = ["QWEN"]

_IMAGES = {"image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652}
_HALF = [0.5, 0.5, 0.5]
_TOWER: dict[str, Any] = {
    "in_channels": 3,
    "initializer_range": 0.02,
    "patch_size": 16,
    "spatial_merge_size": 2,
}
_TOWER |= {"hidden_act": "gelu_pytorch_tanh", "temporal_patch_size": 2, "num_position_embeddings": 2304}
_PROCESSOR = {
    "image_mean": _HALF,
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "image_std": _HALF,
    "merge_size": 2,
    "patch_size": 16,
    "processor_class": "Qwen3VLProcessor",
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "temporal_patch_size": 2,
}
QWEN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]] = {
    "Qwen2.5-VL 7B": (
        SHARED
        | shape(28, 28, 4, 3584, 18944, 152064, 128000)
        | _IMAGES
        | {
            "model_type": "qwen2_5_vl",
            "max_window_layers": 28,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "vision_config": {
                "depth": 32,
                "fullatt_block_indexes": [7, 15, 23, 31],
                "hidden_act": "silu",
                "hidden_size": 1280,
                "in_chans": 3,
                "intermediate_size": 3420,
                "num_heads": 16,
                "out_hidden_size": 3584,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "spatial_patch_size": 14,
                "temporal_patch_size": 2,
                "tokens_per_second": 2,
                "window_size": 112,
            },
            "vision_token_id": 151654,
        },
        {
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_processor_type": "Qwen2VLImageProcessor",
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "max_pixels": 12845056,
            "merge_size": 2,
            "min_pixels": 3136,
            "patch_size": 14,
            "processor_class": "Qwen2_5_VLProcessor",
            "temporal_patch_size": 2,
        },
        {},
        17 * 23,
    ),
    "Qwen3-VL 4B": (
        _IMAGES
        | {
            "model_type": "qwen3_vl",
            "text_config": SHARED
            | shape(36, 32, 8, 2560, 9728, 151936, 262144)
            | {
                "attention_bias": False,
                "head_dim": 128,
                "model_type": "qwen3_vl_text",
                "rms_norm_eps": 1e-06,
                "rope_scaling": {
                    "mrope_interleaved": True,
                    "mrope_section": [24, 20, 20],
                    "rope_type": "default",
                },
                "rope_theta": 5000000,
                "tie_word_embeddings": True,
            },
            "tie_word_embeddings": True,
            "vision_config": _TOWER
            | {
                "deepstack_visual_indexes": [5, 11, 17],
                "depth": 24,
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "model_type": "qwen3_vl",
                "num_heads": 16,
                "out_hidden_size": 2560,
            },
            "vision_end_token_id": 151653,
        },
        _PROCESSOR,
        {},
        15 * 20,
    ),
    "Qwen 3.5 27B": (
        {
            "model_type": "qwen3_5",
            "image_token_id": 248056,
            "text_config": SHARED
            | shape(64, 24, 4, 5120, 17408, 248320, 262144)
            | {
                "attention_bias": False,
                "attn_output_gate": True,
                "full_attention_interval": 4,
                "head_dim": 256,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 48,
                "linear_value_head_dim": 128,
                "mamba_ssm_dtype": "float32",
                "model_type": "qwen3_5_text",
                "mtp_num_hidden_layers": 1,
                "rms_norm_eps": 1e-06,
                "rope_parameters": {
                    "mrope_interleaved": True,
                    "mrope_section": [11, 11, 10],
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 10000000,
                    "rope_type": "default",
                },
            },
            "tie_word_embeddings": False,
            "video_token_id": 248057,
            "vision_config": _TOWER
            | {
                "deepstack_visual_indexes": [],
                "depth": 27,
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "model_type": "qwen3_5",
                "num_heads": 16,
                "out_hidden_size": 5120,
            },
            "vision_end_token_id": 248054,
            "vision_start_token_id": 248053,
        },
        {},
        {
            "image_processor": _PROCESSOR | {"do_center_crop": None, "max_pixels": None, "resample": 3},
            "processor_class": "Qwen3VLProcessor",
            "video_processor": {},
        },
        15 * 20,
    ),
}
"""The config, that of pixels, that of the processor, and the rows of a picture of 640 x 480 pixels."""
