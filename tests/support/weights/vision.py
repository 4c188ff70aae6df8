"""Make folders of tiny image-text-to-text models with random weights.

A LLaVA has one size of image, and as many tokens for each. A Qwen2-VL has more tokens for larger images, and positions
in three dimensions; a Qwen3-VL adds features of the image to later layers. A Gemma 3 puts further tokens around those
of an image, and has sliding windows. Those of `lines_and_tiles` read images of any shape. All use the byte-level
tokenizer of `support.models`.
"""

from __future__ import annotations

import base64
import io
import json
import random
from pathlib import Path
from typing import Any

import torch

from support.models import byte_level_definition
from support.weights.lines_and_tiles import MAKERS, MARKERS, NAMED

__all__ = ["FAMILIES", "FURTHER", "data_url", "make_model", "picture", "vision_files"]

FAMILIES = ("llava", "qwen2_vl")
FURTHER = ("qwen3_vl", "gemma3", *MAKERS)
"""Families that are tried on fewer engines."""
_PLAIN = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
_QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_GEMMA = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
_MARKERS = {
    "llava": ("<image>",),
    "qwen2_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "gemma3": tuple(_GEMMA.values()),
    **MARKERS,
}
_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_QWEN_VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
_IMAGE = {
    "llava": "<image>",
    "qwen2_vl": _QWEN_IMAGE,
    "qwen3_vl": _QWEN_IMAGE,
    "gemma3": "<start_of_image>",
    **{family: markers[0] for family, markers in MARKERS.items()},
}
_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{%- if part.type == 'image' %}{{ 'IMAGE' }}{% elif part.type == 'video' %}{{ 'VIDEO' }}
{%- elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
_TEXT_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
}


def make_model(family: str, folder: Path) -> Path:
    """Write a model of a family into a folder; returns the folder."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    folder.mkdir(parents=True, exist_ok=True)
    definition = byte_level_definition([{"content": text, "special": True} for text in _MARKERS[family]])
    ids = {token["content"]: token["id"] for token in definition["added_tokens"]}
    vocab_size = 64 * -(-(max(ids.values()) + 1) // 64)
    _write(folder / "tokenizer.json", definition)
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    if family == "gemma3":
        special |= {**_GEMMA, "bos_token": "<|endoftext|>"}
    special |= NAMED.get(family, {})
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    template = _TEMPLATE.replace("IMAGE", _IMAGE[family]).replace("VIDEO", _QWEN_VIDEO)
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    config, processor = _made(family, ids, vocab_size)
    for name, content in processor.items():
        _write(folder / name, content)
    _write(folder / "config.json", {**config, "dtype": "float32"})
    torch.manual_seed(5)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                # Weights of the usual spread make every token almost equally likely; these have opinions.
                weight.mul_(25.0 if "embed_tokens" in name else 3.0)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.save_pretrained(folder)
    if family not in MAKERS:
        _name_as_published(folder / "model.safetensors")
    return folder


def vision_files(family: str) -> dict[str, dict[str, Any]]:
    """Return the JSON files of a family that our engine runs that say what it makes of images, by name."""
    ids = {"<|im_end|>": 1, "<|endoftext|>": 2}
    ids |= {marker: number for number, marker in enumerate(_MARKERS[family], 10)}
    config, processor = _made(family, ids, 64)
    return {"config.json": config, "processor_config.json": {}, **processor}


def _made(family: str, ids: dict[str, int], vocab_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    if family in MAKERS:
        text = {**_TEXT_SIZES, "vocab_size": vocab_size, "eos_token_id": ids["<|im_end|>"]}
        return MAKERS[family](ids, text)
    make = {"llava": _llava, "qwen2_vl": _qwen2_vl, "qwen3_vl": _qwen3_vl, "gemma3": _gemma3}[family]
    return make(ids, vocab_size)


def _name_as_published(path: Path) -> None:
    """Name the weights of a CLIP encoder as published checkpoints do; transformers has dropped a part of the names."""
    from safetensors.torch import load_file, save_file

    def published(name: str) -> str:
        return name.replace("vision_tower.", "vision_tower.vision_model.", 1)

    save_file({published(name): weight for name, weight in load_file(path).items()}, path, {"format": "pt"})


def _llava(ids: dict[str, int], vocab_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 28,
        "patch_size": 14,
        "projection_dim": 32,
    }
    config = {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": ids["<image>"],
        "image_seq_length": 4,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "text_config": {
            "model_type": "llama",
            "vocab_size": vocab_size,
            **_TEXT_SIZES,
            "eos_token_id": ids["<|im_end|>"],
        },
        "vision_config": vision,
    }
    images = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
    }
    processor = {
        "processor_class": "LlavaProcessor",
        "patch_size": 14,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
        "image_token": "<image>",
    }
    return config, {"preprocessor_config.json": images, "processor_config.json": processor}


def _qwen2_vl(ids: dict[str, int], vocab_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    text = {
        "model_type": "qwen2_vl_text",
        "vocab_size": vocab_size,
        **_TEXT_SIZES,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "eos_token_id": ids["<|im_end|>"],
        "bos_token_id": ids["<|endoftext|>"],
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 1,
        "mlp_ratio": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    config = {
        "model_type": "qwen2_vl",
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "text_config": text,
        "vision_config": vision,
    }
    images = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16},
    }
    videos = {
        **images,
        "video_processor_type": "Qwen2VLVideoProcessor",
        "do_sample_frames": False,
        "size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 64},
    }
    return config, {"preprocessor_config.json": images, "video_preprocessor_config.json": videos}


def _qwen3_vl(ids: dict[str, int], vocab_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    config, processor = _qwen2_vl(ids, vocab_size)
    rotary = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]}
    text = {**config["text_config"], "model_type": "qwen3_vl_text", "head_dim": 32, "rope_scaling": rotary}
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    config |= {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": text,
        "vision_config": vision,
    }
    processor["preprocessor_config.json"]["processor_class"] = "Qwen3VLProcessor"
    return config, processor


def _gemma3(ids: dict[str, int], vocab_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    text = {
        "model_type": "gemma3_text",
        "vocab_size": vocab_size,
        **_TEXT_SIZES,
        "head_dim": 32,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "bos_token_id": ids["<|endoftext|>"],
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
    }
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": vision,
        "mm_tokens_per_image": 4,
        "boi_token_index": ids["<start_of_image>"],
        "eoi_token_index": ids["<end_of_image>"],
        "image_token_index": ids["<image_soft_token>"],
    }
    images = {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 56, "width": 56},
        "image_seq_length": 4,
    }
    processor = {"processor_class": "Gemma3Processor", "image_seq_length": 4}
    return config, {"preprocessor_config.json": images, "processor_config.json": processor}


def picture(width: int, height: int, seed: int = 0, kind: str = "PNG", mode: str = "RGB") -> bytes:
    """Return the file of a picture of random pixels."""
    from PIL import Image

    channels = {"RGB": 3, "RGBA": 4, "L": 1}[mode]
    pixels = random.Random(seed).randbytes(width * height * channels)
    found = io.BytesIO()
    Image.frombytes(mode, (width, height), pixels).save(found, kind)
    return found.getvalue()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    """Return a file as a data URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), "utf-8")
