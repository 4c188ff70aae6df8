"""Build parts of grammars that several call formats need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.answer.dialects.spec.call_format import Grammar

__all__ = ["numbered", "separated", "with_definitions"]


def separated(grammar: Grammar, items: Sequence[tuple[str, bool]], separator: str) -> str | None:
    """Match items in their order with a separator between each two; None without items.

    Args:
        grammar: builds the expressions.
        items: the expression of each item, and whether it is required.
        separator: the text between two items.
    """
    comma = grammar.literal(separator)
    # From the last item to the first. Everything is kept flat, because grammars may not nest deeply.
    after: list[str] = []  # What may follow an item.
    alone: list[str] = []  # What may come first; nothing at all, if no item is required.
    for item, required in reversed(items):
        first = grammar.sequence([item, *after])
        alone = [first] if required else [first, *alone]
        further = grammar.sequence([comma, item])
        after.insert(0, further if required else grammar.optional(further))
    if not alone:
        return None
    some = grammar.choice(alone)
    return some if any(required for _, required in items) else grammar.optional(some)


def with_definitions(schema: Any, root: Mapping[str, Any]) -> Any:
    """Add the definitions that a part of a schema may refer to."""
    defined = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return {**defined, **schema} if isinstance(schema, Mapping) and defined else schema


def numbered(grammar: Grammar, text: str, before: str) -> list[str]:
    """Match a text with any number in the place of the 0 after `before`."""
    start, _, rest = text.partition(before + "0")
    return [grammar.literal(start + before), grammar.regex("[0-9]{1,3}"), grammar.literal(rest)]
