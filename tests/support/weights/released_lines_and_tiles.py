"""The image parts of configs as releases of Pixtral, Mistral 3, Gemma 4 and Llama 4 have them, and their processors."""

from __future__ import annotations

from typing import Any

from support.weights.released import SHARED, shape

__all__ = ["CLIP", "HALF", "LINES_AND_TILES", "PREPARED", "Release"]

Release = tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]
"""The config, that of pixels, that of the processor, and the rows of a picture of 640 x 480 pixels."""
PIXTRAL_TOWER = {
    "attention_dropout": 0.0,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "image_size": 1540,
    "initializer_range": 0.02,
    "intermediate_size": 4096,
    "model_type": "pixtral",
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_hidden_layers": 24,
    "patch_size": 14,
}
HALF = [0.5, 0.5, 0.5]
PREPARED = {"do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True}
PREPARED |= {"rescale_factor": 0.00392156862745098, "resample": 3}
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
PIXTRAL_MARKS = {"image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]", "image_token": "[IMG]"}
PIXTRAL = {"processor_class": "PixtralProcessor", **PIXTRAL_MARKS}
LINES_AND_TILES: dict[str, Release] = {
    "Pixtral 12B": (
        {
            "model_type": "llava",
            "ignore_index": -100,
            "image_seq_length": 1,
            "image_token_index": 10,
            "projector_hidden_act": "gelu",
            "text_config": {
                "head_dim": 128,
                "hidden_size": 5120,
                "intermediate_size": 14336,
                "is_composition": True,
                "max_position_embeddings": 1024000,
                "model_type": "mistral",
                "num_hidden_layers": 40,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-05,
                "rope_theta": 1000000000.0,
                "sliding_window": None,
                "vocab_size": 131072,
            },
            "torch_dtype": "bfloat16",
            "vision_config": {
                "head_dim": 64,
                "hidden_act": "silu",
                "image_size": 1024,
                "is_composition": True,
                "model_type": "pixtral",
                "patch_size": 16,
                "rope_theta": 10000.0,
                "tie_word_embeddings": False,
            },
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        PREPARED
        | CLIP
        | {
            "image_processor_type": "PixtralImageProcessor",
            "patch_size": {"height": 16, "width": 16},
            "processor_class": "PixtralProcessor",
            "size": {"longest_edge": 1024},
        },
        PIXTRAL | {"patch_size": 16},
        40 * 30,
    ),
    "Mistral Small 3.1 24B": (
        {
            "model_type": "mistral3",
            "image_token_index": 10,
            "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu",
            "spatial_merge_size": 2,
            "text_config": SHARED
            | shape(40, 32, 8, 5120, 32768, 131072, 131072)
            | {"head_dim": 128, "model_type": "mistral", "sliding_window": None},
            "torch_dtype": "bfloat16",
            "vision_config": PIXTRAL_TOWER | {"rope_theta": 10000.0},
            "vision_feature_layer": -1,
        },
        PREPARED
        | CLIP
        | {
            "image_processor_type": "PixtralImageProcessor",
            "patch_size": 14,
            "processor_class": "PixtralProcessor",
            "size": {"longest_edge": 1540},
        },
        PIXTRAL | {"patch_size": 14, "spatial_merge_size": 2},
        23 * 18,
    ),
    "Ministral 3 3B": (
        {
            "model_type": "mistral3",
            "dtype": "bfloat16",
            "image_token_index": 10,
            "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu",
            "spatial_merge_size": 2,
            "text_config": SHARED
            | shape(26, 32, 8, 3072, 9216, 131072, 262144)
            | {"head_dim": 128, "model_type": "ministral3"},
            "vision_config": PIXTRAL_TOWER
            | {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
            "vision_feature_layer": -1,
        },
        {},
        PIXTRAL
        | {
            "image_processor": PREPARED
            | CLIP
            | {
                "crop_size": None,
                "data_format": "channels_first",
                "do_center_crop": None,
                "do_pad": None,
                "image_processor_type": "PixtralImageProcessorFast",
                "pad_size": None,
                "patch_size": 14,
                "processor_class": "PixtralProcessor",
                "size": {"longest_edge": 1540},
            },
            "patch_size": 14,
            "spatial_merge_size": 2,
        },
        23 * 18,
    ),
    "Gemma 4 31B": (
        {
            "model_type": "gemma4",
            "audio_config": None,
            "audio_token_id": 258881,
            "boa_token_id": 256000,
            "boi_token_id": 255999,
            "dtype": "bfloat16",
            "eoa_token_id": 258883,
            "eoa_token_index": 258883,
            "eoi_token_id": 258882,
            "image_token_id": 258880,
            "initializer_range": 0.02,
            "text_config": shape(60, 32, 16, 5376, 21504, 262144, 262144)
            | {
                "attention_k_eq_v": True,
                "enable_moe_block": False,
                "final_logit_softcapping": 30.0,
                "global_head_dim": 512,
                "head_dim": 256,
                "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size_per_layer_input": 0,
                "model_type": "gemma4_text",
                "num_global_key_value_heads": 4,
                "num_kv_shared_layers": 0,
                "pad_token_id": 0,
                "rms_norm_eps": 1e-06,
                "sliding_window": 1024,
                "use_bidirectional_attention": "vision",
                "vocab_size_per_layer_input": 262144,
            },
            "tie_word_embeddings": True,
            "video_token_id": 258884,
            "vision_config": {
                "attention_bias": False,
                "attention_dropout": 0.0,
                "default_output_length": 280,
                "dtype": "bfloat16",
                "global_head_dim": 72,
                "head_dim": 72,
                "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "max_position_embeddings": 131072,
                "model_type": "gemma4_vision",
                "num_attention_heads": 16,
                "num_hidden_layers": 27,
                "num_key_value_heads": 16,
                "patch_size": 16,
                "pooling_kernel_size": 3,
                "position_embedding_size": 10240,
                "rms_norm_eps": 1e-06,
                "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
                "standardize": True,
                "use_clipped_linears": False,
            },
            "vision_soft_tokens_per_image": 280,
        },
        {},
        {
            "image_processor": PREPARED
            | {
                "do_normalize": False,
                "image_mean": [0.0, 0.0, 0.0],
                "image_processor_type": "Gemma4ImageProcessor",
                "image_seq_length": 280,
                "image_std": [1.0, 1.0, 1.0],
                "max_soft_tokens": 280,
                "patch_size": 16,
                "pooling_kernel_size": 3,
                "size": {"height": 224, "width": 224},
            },
            "image_seq_length": 280,
            "processor_class": "Gemma4Processor",
        },
        19 * 14,
    ),
    "Llama 4 Scout": (
        {
            "model_type": "llama4",
            "boi_token_index": 200080,
            "eoi_token_index": 200081,
            "image_token_index": 200092,
            "text_config": shape(48, 40, 8, 5120, 8192, 202048, 262144)
            | {
                "attention_bias": False,
                "attention_chunk_size": 8192,
                "attn_scale": 0.1,
                "attn_temperature_tuning": 4,
                "floor_scale": 8192,
                "for_llm_compressor": False,
                "head_dim": 128,
                "hidden_act": "silu",
                "interleave_moe_layer_step": 1,
                "intermediate_size_mlp": 16384,
                "model_type": "llama4_text",
                "moe_layers": list(range(48)),
                "no_rope_layers": [1, 1, 1, 0] * 12,
                "num_experts_per_tok": 1,
                "num_local_experts": 16,
                "rms_norm_eps": 1e-05,
                "rope_scaling": {
                    "factor": 8.0,
                    "high_freq_factor": 4.0,
                    "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192,
                    "rope_type": "llama3",
                },
                "rope_theta": 500000.0,
                "use_qk_norm": True,
            },
            "torch_dtype": "bfloat16",
            "vision_config": {
                "attention_dropout": 0.0,
                "hidden_act": "gelu",
                "hidden_size": 1408,
                "image_size": 336,
                "initializer_range": 0.02,
                "intermediate_size": 5632,
                "model_type": "llama4_vision_model",
                "multi_modal_projector_bias": False,
                "norm_eps": 1e-05,
                "num_attention_heads": 16,
                "num_channels": 3,
                "num_hidden_layers": 34,
                "patch_size": 14,
                "pixel_shuffle_ratio": 0.5,
                "projector_dropout": 0.0,
                "projector_input_dim": 4096,
                "projector_output_dim": 4096,
                "rope_theta": 10000,
                "vision_feature_layer": -1,
                "vision_feature_select_strategy": "default",
                "vision_output_dim": 4096,
            },
        },
        PREPARED
        | {
            "image_mean": HALF,
            "image_processor_type": "Llama4ImageProcessorFast",
            "image_std": HALF,
            "max_patches": 16,
            "processor_class": "Llama4Processor",
            "resample": 2,
            "resize_to_max_canvas": False,
            "size": {"height": 336, "width": 336},
        },
        {
            "fake_image_token": "<|image|>",
            "image_token": "<|image|>",
            "patch_size": 14,
            "processor_class": "Llama4Processor",
        },
        (2 * 2 + 1) * 144,
    ),
}
