"""Put eyes on the text model: the LLaVA layout with a SigLIP encoder and a projector of two layers."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
        "intermediate_size": 256,
        "layer_norm_eps": 1e-6,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 8,
        "num_channels": 3,
        "num_hidden_layers": 5,
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
    _start(model.model.vision_tower.embeddings)
    return model


def _waves(size: int, count: int) -> Tensor:
    """Return the lowest cosine waves of a number of pixels, orthonormal, [count, size]."""
    middle = (torch.arange(size) + 0.5) / size
    waves: Tensor = torch.cos(math.pi * torch.arange(count)[:, None] * middle) * (2 / size) ** 0.5
    waves[0] /= 2**0.5
    return waves


@torch.no_grad()
def _start(embeddings: Any) -> None:
    """Let patches begin as cosine waves of brightness and color, and positions as waves of row and column.

    From random numbers, the encoder needs a hundred thousand pictures to find out which patches are neighbours.
    """
    weight = embeddings.patch_embedding.weight
    brightness = torch.tensor([1.0, 1.0, 1.0]) / 3**0.5
    colours = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]) / torch.tensor([[2.0], [6.0]]) ** 0.5
    filters = []
    for colour, most in ((brightness, 64), (colours[0], 32), (colours[1], 32)):
        order = sorted(((y, x) for y in range(PATCH) for x in range(PATCH)), key=lambda each: sum(each))
        waves = _waves(PATCH, PATCH)
        for y, x in order[:most]:
            # Without these scales the mean of a patch would drown all else.
            scale = 0.05 if not y + x else 0.12 * (1 + 0.15 * (y + x))
            filters.append(scale * colour[:, None, None] * waves[y][:, None] * waves[x])
    weight.copy_(torch.stack(filters))
    embeddings.patch_embedding.bias.zero_()
    side, quarter = SIZE // PATCH, weight.shape[0] // 4
    rates = torch.exp(torch.arange(quarter) * (-math.log(20.0) / quarter))
    angles = torch.arange(side)[:, None] * rates
    waves = torch.cat((angles.sin(), angles.cos()), 1)
    rows, columns = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
    embeddings.position_embedding.weight.copy_(torch.cat((rows, columns), 2).flatten(0, 1))


def pixels(pictures: list[Any]) -> Tensor:
    """Return pictures as the processor gives them to the model: float32 [pictures, 3, SIZE, SIZE], from -1 to 1."""
    import numpy as np
    from PIL import Image

    grid = np.stack([np.asarray(p.resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for p in pictures])
    return torch.from_numpy(grid).permute(0, 3, 1, 2).float() / 127.5 - 1
