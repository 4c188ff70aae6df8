"""Stand in for `vllm.config`: every model is the pocket model."""

from __future__ import annotations

import json
from typing import Any

from plumbline.pocket import MODEL_DIR
from vllm import absent


class ModelConfig:
    """What tests read of a model's configuration."""

    def __init__(self, **named: Any) -> None:
        self._config = json.loads((MODEL_DIR / "config.json").read_text("utf-8"))

    def get_vocab_size(self) -> int:
        """Return the number of tokens of the model."""
        size: int = self._config.get("text_config", self._config)["vocab_size"]
        return size


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return absent("vllm.config", name)
