"""Pieces of grammars that several forms need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.dialects.api import Grammar

__all__ = ["separated", "with_definitions"]


def separated(grammar: Grammar, items: Sequence[tuple[str, bool]], separator: str) -> str | None:
    """Items in their order with a separator between each two that are there; None if there are no items.

    Args:
        grammar: what builds the expressions.
        items: an expression each, and whether it has to be there.
        separator: the text between two.
    """
    comma = grammar.literal(separator)
    after: str | None = None
    """What may follow once an item stands before it."""
    alone: str | None = None
    """The same if none does; None is nothing at all."""
    optional = True
    for item, required in reversed(items):
        first = item if after is None else grammar.sequence([item, after])
        if required or alone is None:
            alone_now = first
        else:
            alone_now = grammar.choice([first, alone])
        optional = False if required else optional
        one = grammar.sequence([comma, item])
        one = one if required else grammar.optional(one)
        after = one if after is None else grammar.sequence([one, after])
        alone = alone_now
    return grammar.optional(alone) if alone is not None and optional else alone


def with_definitions(schema: Any, root: Mapping[str, Any]) -> Any:
    """A part of a schema with the definitions that it may refer to."""
    defined = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return {**defined, **schema} if isinstance(schema, Mapping) and defined else schema
