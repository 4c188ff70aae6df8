"""State the model shapes, and what each step computes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CONTEXT", "LOADS", "SHAPES", "ModelShape", "StepLoad"]

CONTEXT = 4096
"""Tokens of each sequence that is decoded."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model; experts have `inner` each."""

    name: str
    like: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    experts: int = 0
    top_k: int = 1


@dataclass(frozen=True)
class StepLoad:
    """A step: sequences that are decoded, or the tokens of one whole prompt."""

    name: str
    sequences: int
    prompt: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of the step."""
        return self.prompt or self.sequences


SHAPES = (
    ModelShape("1 B", "Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128256),
    ModelShape("8 B", "Llama 3.1 8B", 32, 4096, 32, 8, 128, 14336, 128256),
    ModelShape("30 B-A3B", "Qwen3 30B-A3B", 48, 2048, 32, 4, 128, 768, 151936, experts=128, top_k=8),
    ModelShape(
        "120 B-A5B", "gpt-oss 120B, without windows", 36, 2880, 64, 8, 64, 2880, 201088, experts=128, top_k=4
    ),
)
LOADS = (
    *(StepLoad(f"decode {number}", number) for number in (1, 8, 64, 256)),
    *(StepLoad(f"prefill {tokens // 1024}k", 1, tokens) for tokens in (2048, 16384)),
)
