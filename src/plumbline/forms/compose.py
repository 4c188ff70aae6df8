"""The grammar of a turn, composed in this one place: free thinking first, then the promised form."""

from __future__ import annotations

import msgspec

from plumbline.forms.grammar import GrammarBuilder
from plumbline.turn import ChoiceFormat, JsonFormat, LarkFormat, OutputFormat, RegexFormat

__all__ = ["ReasoningFrame", "compose", "form_of"]


class ReasoningFrame(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes its thinking, so that a form can begin after it."""

    opening: tuple[str, ...]
    """The texts that may begin it."""
    closing: str
    """The marker that ends it."""
    inside: bool = False
    """The prompt ends inside the thinking: the answer begins with more of it, and `closing` has to come."""
    gap: str = ""
    """What the model may write between the end of its thinking and its answer; it belongs to neither."""


def compose(
    builder: GrammarBuilder,
    *,
    output_format: OutputFormat | None,
    reasoning: ReasoningFrame | None = None,
) -> str | None:
    """The grammar of a whole answer; None if nothing is promised.

    Raises:
        FormError: a form cannot be held.
    """
    if output_format is None:
        return None
    return builder.build(_after_thinking(builder, form_of(builder, output_format), reasoning))


def form_of(builder: GrammarBuilder, output_format: OutputFormat) -> str:
    """An expression for the form.

    Raises:
        FormError: it cannot be held.
    """
    match output_format:
        case JsonFormat(schema=schema):
            # `json_object` promises an object, whatever is in it (SO-02).
            return builder.json({"type": "object"} if schema is None else schema)
        case RegexFormat(pattern=pattern):
            return builder.regex(pattern)
        case ChoiceFormat(choices=choices):
            return builder.choice(builder.literal(choice) for choice in choices)
        case LarkFormat(grammar=grammar):
            return builder.lark(grammar)


def _after_thinking(builder: GrammarBuilder, form: str, reasoning: ReasoningFrame | None) -> str:
    if reasoning is None:
        return form
    closed = builder.until(reasoning.closing)
    if reasoning.gap:
        closed = builder.sequence([closed, builder.optional(builder.literal(reasoning.gap))])
    if reasoning.inside:
        return builder.sequence([closed, form])
    opened = builder.sequence([builder.choice(map(builder.literal, reasoning.opening)), closed])
    return builder.sequence([builder.optional(opened), form])
