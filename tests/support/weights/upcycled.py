"""Write the pocket model as a model of quantised experts that gives its answers.

Each dense block becomes three experts alike, of which a token takes two. Their weights are signs in fp8 with a scale
for each number, so they are those of the pocket model exactly, whatever the router chooses.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from plumbline.pocket import MODEL_DIR
from plumbline.pocket.folder import text_config, text_weights, write_text_model

__all__ = ["write_experts"]

_NUMBER = 3


def write_experts(folder: Path) -> str:
    """Write the model into a folder; returns the path of it."""
    target = folder / "experts"
    write_text_model(MODEL_DIR, target)
    text = text_config(MODEL_DIR)
    config = text | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": text["intermediate_size"],
        "norm_topk_prob": True,
        "num_experts": _NUMBER,
        "num_experts_per_tok": 2,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [1, 1]},
    }
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {}
    for name, weight in text_weights(MODEL_DIR).items():
        if ".mlp." not in name:
            tensors[name] = weight
            continue
        for expert in range(_NUMBER):
            own = name.replace(".mlp.", f".mlp.experts.{expert}.")
            tensors[own] = weight.float().sign().to(torch.float8_e4m3fn)
            tensors[f"{own}_scale_inv"] = weight.float().abs()
    generator = torch.Generator().manual_seed(1)
    for layer in range(text["num_hidden_layers"]):
        router = torch.randn(_NUMBER, text["hidden_size"], generator=generator)
        tensors[f"model.layers.{layer}.mlp.gate.weight"] = router
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return str(target)
