"""Stand in for `vllm.transformers_utils.repo_utils`: repositories are the pocket model and adapters for it."""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from plumbline.pocket import MODEL_DIR

_RANK = 4
_FOLDER = tempfile.TemporaryDirectory()
"""Has the adapters; it goes with the process."""


class _Hub:
    def snapshot_download(self, repo_id: str, **named: Any) -> str:
        """Return the folder of the model, or of an adapter if the name has `lora`."""
        is_adapter = any(part in repo_id.lower() for part in ("lora", "self_cognition"))
        return str(_adapter(repo_id) if is_adapter else MODEL_DIR)


def hf_api() -> _Hub:
    """Return what the tests download with."""
    return _Hub()


def _adapter(name: str) -> Path:
    """Write an adapter of the query projections, as PEFT does, with numbers that depend on its name."""
    folder = Path(_FOLDER.name) / name.replace("/", "--")
    if folder.is_dir():
        return folder
    folder.mkdir()
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 8.0, "bias": "none", "task_type": "CAUSAL_LM"}
    config |= {"target_modules": ["q_proj"], "base_model_name_or_path": "plumbline-pocket"}
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    drawn = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    weights = {}
    for file in MODEL_DIR.glob("*.safetensors"):
        for key, weight in load_file(file).items():
            # Adapters change the language model, and not how it sees.
            if not key.endswith("q_proj.weight") or "vision_tower" in key:
                continue
            place = f"base_model.model.{key.removesuffix('.weight')}"
            rows, columns = weight.shape
            weights[f"{place}.lora_A.weight"] = torch.randn(_RANK, columns, generator=drawn) / columns**0.5
            weights[f"{place}.lora_B.weight"] = torch.randn(rows, _RANK, generator=drawn) / rows**0.5
    save_file(weights, folder / "adapter_model.safetensors")
    return folder
