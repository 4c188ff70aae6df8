"""Stand in for `vllm.tokenizers`: every model is the pocket model."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer

from plumbline.pocket import MODEL_DIR


def get_tokenizer(*names: str, **named: Any) -> Any:
    """Return the tokenizer of the pocket model."""
    return AutoTokenizer.from_pretrained(MODEL_DIR)
