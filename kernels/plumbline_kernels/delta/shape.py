"""The heads of a delta net or of a state space."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeltaShape"]


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """The heads of a delta net."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    corrects: bool = True
    """Whether keys and queries have length 1 and writes are corrections; False for a state space."""
    tiled: bool = False
    """Whether value head h has the key and query of key head h % key_heads, and not h // (value_heads // key_heads)."""

    @property
    def channels(self) -> int:
        """The width of queries, keys and values together."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
