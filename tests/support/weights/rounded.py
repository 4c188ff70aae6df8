"""Write the pocket model with the weights of its linear layers rounded to 4 bits, in groups of 32 inputs.

The checkpoint is one of compressed-tensors (`pack-quantized`). The same weights dequantised are what transformers runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from plumbline.pocket import MODEL_DIR
from plumbline.pocket.folder import text_config, text_weights, write_text_model
from support.servers.pocket import text_model
from support.weights.quantised import compressed, of_bits, words

__all__ = ["rounded_model", "write_rounded"]

_BITS, _GROUP = 4, 32
_HALF = 1 << _BITS - 1


def write_rounded(folder: Path) -> str:
    """Write the model into a folder; returns the path of it."""
    target = folder / "rounded"
    write_text_model(MODEL_DIR, target)
    config = text_config(MODEL_DIR) | {
        "quantization_config": compressed("pack-quantized", of_bits(_BITS, _GROUP))
    }
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {}
    for name, weight in text_weights(MODEL_DIR).items():
        if not _is_linear(name):
            tensors[name] = weight
            continue
        levels, scales = _round(weight)
        module = name.removesuffix(".weight")
        tensors[f"{module}.weight_packed"] = words(levels.flatten(1) + _HALF, _BITS)
        tensors[f"{module}.weight_scale"] = scales
        tensors[f"{module}.weight_shape"] = torch.tensor(weight.shape)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return str(target)


def rounded_model() -> Any:
    """Return the same model in transformers, with dequantised weights in fp32."""
    model = text_model()
    for name, weight in model.named_parameters():
        if _is_linear(name):
            levels, scales = _round(weight.detach())
            weight.data = (levels * scales[:, :, None]).flatten(1)
    return model


def _is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def _round(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return levels [out, groups, 32] and scales fp32 [out, groups]."""
    grouped = weight.float().unflatten(1, (-1, _GROUP))
    scales = grouped.abs().amax(-1) / (_HALF - 1)
    return (grouped / scales[:, :, None]).round().clamp(-_HALF, _HALF - 1), scales
