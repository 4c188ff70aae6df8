"""Write the model folder of a scripted checkpoint: a Hugging Face folder with its scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from plumbline.pocket.network import Network, config_of
from plumbline.scripted_model.vocabulary import END_OF_TEXT, IM_END, id_of, save
from plumbline_conformance.exact.scripts import ScriptSet

__all__ = ["SCRIPTS", "write"]

SCRIPTS = "scripts.json"
"""The file name of the script set in the folder, from which tests read the expected answers."""


def write(folder: Path, network: Network, tokenizer: Tokenizer, scripts: ScriptSet) -> None:
    """Write config, weights in bfloat16, tokenizer, chat template, generation config and the scripts.

    Args:
        folder: created if it does not exist.
        network: its weights are exact in bfloat16.
        tokenizer: built for these scripts.
        scripts: the scripts that the network has learned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.detach().to(torch.bfloat16).contiguous() for name, value in network.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    save(tokenizer, folder)
    end, pad = id_of(tokenizer, IM_END), id_of(tokenizer, END_OF_TEXT)
    _write(folder / "config.json", config_of(network.shape, end, pad))
    _write(
        folder / "generation_config.json",
        {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad},
    )
    _write(folder / SCRIPTS, msgspec.to_builtins(scripts))


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
