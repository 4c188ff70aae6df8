"""Put eyes on the text model: the LLaVA layout with a SigLIP encoder and a projector of two layers."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from plumbline.pocket.folder import text_config, text_weights

SIZE = 96
"""Pixels of a side of a picture, after the processor."""
PATCH = 12
TOKENS = (SIZE // PATCH) ** 2
IMAGE_TOKEN = "<|image|>"


def vision_config() -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 128,
        "image_size": SIZE,
        "intermediate_size": 384,
        "layer_norm_eps": 1e-6,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 4,
        "num_channels": 3,
        "num_hidden_layers": 4,
        "patch_size": PATCH,
        "vision_use_head": False,
    }


def llava_config(text: dict[str, Any], image_token: int) -> dict[str, Any]:
    """Return the content of `config.json` for a text model with eyes."""
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "eos_token_id": text["eos_token_id"],
        "image_seq_length": TOKENS,
        "image_token_index": image_token,
        "model_type": "llava",
        "multimodal_projector_bias": True,
        "pad_token_id": text["pad_token_id"],
        "projector_hidden_act": "gelu",
        "text_config": text,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vision_config": vision_config(),
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }


def processor_configs() -> dict[str, dict[str, Any]]:
    """Return the files that describe how a picture becomes pixels and tokens."""
    half = [0.5, 0.5, 0.5]
    return {
        "preprocessor_config.json": {
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": half,
            "image_processor_type": "SiglipImageProcessor",
            "image_std": half,
            "processor_class": "LlavaProcessor",
            "resample": 3,
            "rescale_factor": 1 / 255,
            "size": {"height": SIZE, "width": SIZE},
        },
        "processor_config.json": {
            "image_token": IMAGE_TOKEN,
            "num_additional_image_tokens": 0,
            "patch_size": PATCH,
            "processor_class": "LlavaProcessor",
            "vision_feature_select_strategy": "full",
        },
    }


def build(text_folder: Path, image_token: int) -> Any:
    """Return the model of transformers in float32, with the weights of a text model and new eyes."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    config = LlavaConfig(**llava_config(text_config(text_folder), image_token))
    model = LlavaForConditionalGeneration(config).float()
    weights = {name.removeprefix("model."): w.float() for name, w in text_weights(text_folder).items()}
    model.model.language_model.load_state_dict(weights, strict=True)
    model.tie_weights()
    return model


def eyes(model: Any) -> dict[str, nn.Parameter]:
    """Return the parameters of the encoder and the projector."""
    return {
        name: value
        for name, value in model.model.named_parameters()
        if name.startswith(("vision_tower.", "multi_modal_projector."))
    }


def pixels(pictures: list[Any]) -> torch.Tensor:
    """Return pictures as the processor gives them to the model: float32 [pictures, 3, SIZE, SIZE], from -1 to 1."""
    import numpy as np
    from PIL import Image

    grid = np.stack([np.asarray(p.resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for p in pictures])
    return torch.from_numpy(grid).permute(0, 3, 1, 2).float() / 127.5 - 1
