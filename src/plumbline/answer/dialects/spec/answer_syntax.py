"""Describe the syntax of whole answers, for their grammar."""

from __future__ import annotations

import msgspec

from plumbline.answer.dialects.spec.dialect import ReasoningDialect, ToolDialect

__all__ = ["AnswerSyntax"]


class AnswerSyntax(msgspec.Struct, frozen=True, kw_only=True):
    """The syntax of thinking, text and calls. The default is text alone."""

    reasoning: ReasoningDialect | None = None
    """How the model writes thinking; None without thinking."""
    calls: ToolDialect | None = None
    """How the model writes calls; None without calls."""
    text_header: str = ""
    """What stands before the text."""
    call_starts: tuple[str, ...] = ()
    """Every call starts with one of these, so text without them contains no call. Empty if the model writes no calls,
    or if calls start like text."""
    not_in_thinking: tuple[str, ...] = ()
    """What thinking must not contain, because an unconstrained call would start there."""
    is_plain_text: bool = True
    """False if a response template transforms the text, so that a constraint on it would constrain nothing."""
