"""The image parts of configs as releases have them are read, and their processors."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from support.weights.released import SHARED, shape
from support.weights.released_lines_and_tiles import CLIP, HALF, LINES_AND_TILES, PREPARED, Release
from support.weights.released_qwen import QWEN

from plumbline.engines.native.models import describe
from plumbline.engines.native.models.vision.families import read_preparation, read_vision

SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "patch_size": 14,
    "vision_use_head": False,
}
SEEING: dict[str, Release] = {
    "LLaVA 1.5 7B": (
        {
            "model_type": "llava",
            "ignore_index": -100,
            "image_token_index": 32000,
            "pad_token_id": 32001,
            "projector_hidden_act": "gelu",
            "text_config": {
                "_name_or_path": "lmsys/vicuna-7b-v1.5",
                "architectures": ["LlamaForCausalLM"],
                "max_position_embeddings": 4096,
                "model_type": "llama",
                "rms_norm_eps": 1e-05,
                "torch_dtype": "float16",
                "vocab_size": 32064,
            },
            "torch_dtype": "float16",
            "vision_config": {
                "hidden_size": 1024,
                "image_size": 336,
                "intermediate_size": 4096,
                "model_type": "clip_vision_model",
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
                "projection_dim": 768,
                "vocab_size": 32000,
            },
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "vocab_size": 32064,
        },
        PREPARED
        | {
            "crop_size": {"height": 336, "width": 336},
            "do_center_crop": True,
            **CLIP,
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "LlavaProcessor",
            "size": {"shortest_edge": 336},
        },
        {
            "image_token": "<image>",
            "num_additional_image_tokens": 1,
            "patch_size": 14,
            "processor_class": "LlavaProcessor",
            "vision_feature_select_strategy": "default",
        },
        576,
    ),
    "LLaVA Interleave Qwen 0.5B": (
        {
            "model_type": "llava",
            "ignore_index": -100,
            "image_token_index": 151646,
            "projector_hidden_act": "gelu",
            "text_config": SHARED | shape(24, 16, 16, 1024, 2816, 152000, 32768) | {"model_type": "qwen2"},
            "vision_config": SIGLIP | {"image_size": 384, "num_hidden_layers": 26},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        PREPARED
        | {
            "image_mean": HALF,
            "image_processor_type": "SiglipImageProcessor",
            "image_std": HALF,
            "size": {"height": 384, "width": 384},
        },
        {"patch_size": 14, "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "full"},
        729,
    ),
    "Gemma 3 4B": (
        {
            "model_type": "gemma3",
            "boi_token_index": 255999,
            "eoi_token_index": 256000,
            "eos_token_id": [1, 106],
            "image_token_index": 262144,
            "initializer_range": 0.02,
            "mm_tokens_per_image": 256,
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "torch_dtype": "bfloat16",
            "vision_config": SIGLIP | {"image_size": 896, "num_hidden_layers": 27},
        },
        PREPARED
        | {
            "do_convert_rgb": None,
            "do_pan_and_scan": None,
            "image_mean": HALF,
            "image_processor_type": "Gemma3ImageProcessor",
            "image_seq_length": 256,
            "image_std": HALF,
            "pan_and_scan_max_num_crops": None,
            "pan_and_scan_min_crop_size": None,
            "pan_and_scan_min_ratio_to_activate": None,
            "processor_class": "Gemma3Processor",
            "resample": 2,
            "size": {"height": 896, "width": 896},
        },
        {"image_seq_length": 256, "processor_class": "Gemma3Processor"},
        256,
    ),
    **LINES_AND_TILES,
    **QWEN,
}
"""Models of images and text: the config, that of pixels, that of the processor, and the rows of a picture."""


@pytest.mark.parametrize("name", SEEING)
def test_the_images_of_a_release_are_read(name: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    file = io.BytesIO()
    image.new("1", (640, 480)).save(file, "PNG")
    config, pixels, processor, rows = SEEING[name]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pixels), "utf-8")
    (tmp_path / "processor_config.json").write_text(json.dumps(processor), "utf-8")
    vision = read_vision(config, describe(config))
    prepared = read_preparation(tmp_path, vision)
    layout = vision.layout(*prepared.size(file.getvalue()), lambda text: (len(text),))
    assert layout.num_rows == rows
