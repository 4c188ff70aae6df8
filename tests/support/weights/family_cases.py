"""A small config of a family, and what all of them have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import transformers

SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Changes that make heads as wide as the compiled kernels take them."""
HALF: dict[str, Any] = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass
class Case:
    """A config of a family: changes of `SMALL`."""

    family: str
    changes: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    norms: float = 0.7
    """The mean of random weights of norms."""
    length: int | None = None
    """Positions that the server is started for, if more than the config has."""
    is_compiled: bool = False
    is_long: bool = False
    """Whether it is a further case of a family, which the fast suite does without."""
    kernels: bool = True
    """Whether the Triton kernels have its operations."""

    @property
    def runs_on_kernels(self) -> bool:
        """Whether the Triton kernels run it, with heads as narrow as the interpreter needs them."""
        return self.kernels and not self.is_compiled

    @property
    def name(self) -> str:
        """The family, what is special, and what runs it."""
        return "-".join(filter(None, (self.family, self.label, "compiled" if self.is_compiled else "")))

    def config(self) -> Any:
        """Return transformers' config."""
        return transformers.AutoConfig.for_model(self.family, **(SMALL | self.changes))


def both(family: str, label: str = "", norms: float = 0.7, **changes: Any) -> list[Case]:
    """A case on torch, and one with wide heads on the compiled kernels."""
    wide = {"head_dim": 32} if "head_dim" in changes else {}
    return [
        Case(family, changes, label, norms),
        Case(family, changes | WIDE | wide, label, norms, is_compiled=True),
    ]
