"""Write random LoRA adapters as PEFT does, and merge them into the weights of transformers' models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.pytorch_utils import Conv1D

__all__ = ["PREFIX", "merge", "write_adapter"]

PREFIX = "base_model.model."
Module = Any


def write_adapter(
    folder: Path,
    model: Module,
    targets: tuple[str, ...],
    *,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 0,
    size: float = 1.0,
    of_weights: bool = False,
    rank_of: Callable[[str], int] | None = None,
    **fields: Any,
) -> Path:
    """Write an adapter of the modules of a model that have these names.

    Args:
        folder: is made.
        model: of transformers, the base.
        targets: ends of names of modules.
        rank: of all modules.
        alpha: `lora_alpha`.
        seed: of the numbers.
        size: a factor on what it adds.
        of_weights: whether that is as large as the weights; else its rows have the length 1.
        rank_of: the rank of each module, if `rank_pattern` gives some another one.
        fields: further ones of the configuration.
    """
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "task_type": "CAUSAL_LM"}
    config |= {"target_modules": list(targets), "lora_dropout": 0.05, "base_model_name_or_path": "base"}
    (folder / "adapter_config.json").write_text(json.dumps(config | fields), "utf-8")
    weights: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if not name.endswith(targets) or not isinstance(module, torch.nn.Linear | Conv1D):
            continue
        shape = module.weight.shape
        outputs, inputs = shape[::-1] if isinstance(module, Conv1D) else shape
        own = rank if rank_of is None else rank_of(name)
        a, b = (torch.randn(*shape, generator=generator) for shape in ((own, inputs), (outputs, own)))
        factor = size * module.weight.detach().std().item() * inputs**0.5 if of_weights else size
        weights[f"{PREFIX}{name}.lora_A.weight"] = a * inputs**-0.5
        weights[f"{PREFIX}{name}.lora_B.weight"] = b * own**-0.5 * factor
    assert weights, "the model has no such modules"
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


@torch.inference_mode()
def merge(model: Module, folder: Path, scale: Callable[[str], float] = lambda name: 2.0) -> None:
    """Add an adapter to the weights of a model; `scale` returns the factor of a module, usually alpha / rank."""
    weights = load_file(folder / "adapter_model.safetensors")
    used = 0
    for name, module in model.named_modules():
        key = f"{PREFIX}{name}"
        if f"{key}.lora_A.weight" in weights:
            added = scale(name) * weights[f"{key}.lora_B.weight"] @ weights[f"{key}.lora_A.weight"]
            module.weight += added.t() if isinstance(module, Conv1D) else added
            used += 2
    assert used == len(weights)
