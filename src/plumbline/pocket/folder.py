"""Read the text model in the folder of the pocket model, which may have the layout of a vision-language model."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

__all__ = ["TEXT_PREFIX", "text_config", "text_weights", "write_text_model"]

TEXT_PREFIX = "language_model."
"""What the names of the text model's weights begin with."""


def text_config(folder: Path) -> dict[str, Any]:
    """Return the config of the text model."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text: dict[str, Any] = config.get("text_config", config)
    return text


def text_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of the text model, by the names that they have in a model of text alone."""
    weights = load_file(folder / "model.safetensors")
    inside = {
        name.removeprefix(TEXT_PREFIX): weight
        for name, weight in weights.items()
        if name.startswith(TEXT_PREFIX)
    }
    return inside or weights


def write_text_model(folder: Path, target: Path) -> None:
    """Write the text model of a folder as a folder of its own, for programs that read no images."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    (target / "config.json").write_text(json.dumps(text_config(folder), indent=2) + "\n", encoding="utf-8")
    save_file(text_weights(folder), target / "model.safetensors", metadata={"format": "pt"})
