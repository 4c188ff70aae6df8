"""Locate the pocket model, define its network, and convert it to GGUF; `plumbline_training` trains it."""

from pathlib import Path

__all__ = ["MODEL_DIR", "MODEL_NAME", "QWEN2_SPLIT"]

MODEL_DIR = Path(__file__).parent / "model"
MODEL_NAME = "plumbline-pocket"
"""The Hugging Face folder of the model."""
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2's tokenizer, and the pocket model's, splits text before byte-pair encoding."""
