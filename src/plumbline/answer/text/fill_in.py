"""Find the tokens with which a model fills in the middle of a text, and build prompts from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["FillIn", "fill_in_tokens"]


@dataclass(frozen=True, slots=True)
class FillIn:
    """The tokens around the two sides of a gap.

    Attributes:
        before: stands before the text on the left.
        after: stands before the text on the right.
        middle: stands last, where the model goes on; None if nothing stands there.
        right_first: whether the text on the right comes first.
    """

    before: int
    after: int
    middle: int | None
    right_first: bool = False

    def prompt(self, left: Sequence[int], right: Sequence[int]) -> list[int]:
        """Return the prompt for the text between two sides, given as token ids."""
        sides = [[self.before, *left], [self.after, *right]]
        if self.right_first:
            sides.reverse()
        return [*sides[0], *sides[1], *(() if self.middle is None else (self.middle,))]


_FAMILIES: tuple[tuple[str, str, str | None, bool], ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", False),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", False),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>", False),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", False),
    ("▁<PRE>", "▁<SUF>", "▁<MID>", False),  # Code Llama
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", False),  # CodeGeeX4
    ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", True),  # Seed-Coder
    ("[PREFIX]", "[SUFFIX]", None, True),  # Codestral
)
"""The tokens before the left side, before the right side and at the end, and whether the right side comes first; from
the model cards of these families."""


def fill_in_tokens(added: Mapping[str, int]) -> FillIn | None:
    """Return how a tokenizer with these added tokens fills in the middle; None if it has no such tokens."""
    for before, after, middle, right_first in _FAMILIES:
        if before in added and after in added and (middle is None or middle in added):
            return FillIn(added[before], added[after], None if middle is None else added[middle], right_first)
    return None
