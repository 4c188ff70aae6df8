"""Build a model's dialect from its dialect choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from plumbline.answer.dialects.kinds.harmony import HarmonyDialect
from plumbline.answer.dialects.kinds.markers import MarkerDialect
from plumbline.answer.dialects.kinds.plain import PlainDialect
from plumbline.answer.dialects.kinds.response_template import ResponseTemplateDialect
from plumbline.answer.dialects.model_dialect import DialectVocabulary, ModelDialect
from plumbline.answer.dialects.registry import DialectChoice

__all__ = ["NO_TOKENS", "build_dialect"]


class _NoTokens(msgspec.Struct, frozen=True):
    """A vocabulary without tokens."""

    added: Mapping[str, int] = {}
    special_ids: frozenset[int] = frozenset()
    table: Sequence[bytes] = ()


NO_TOKENS: Final[DialectVocabulary] = _NoTokens()
"""For dialects that parse and write text, and never look at a prompt."""


def build_dialect(choice: DialectChoice, vocabulary: DialectVocabulary = NO_TOKENS) -> ModelDialect:
    """Join the chosen dialects with the vocabulary of a model.

    Args:
        choice: the result of `plumbline.answer.dialects.registry.choose`.
        vocabulary: the tokens of the model, usually its tokenizer.
    """
    if choice.response_template is not None:
        return ResponseTemplateDialect(choice, choice.response_template, vocabulary)
    dialects = [dialect for dialect in (choice.tool, choice.reasoning) if dialect is not None]
    if not dialects:
        return PlainDialect(choice)
    if any(dialect.messages for dialect in dialects):
        return HarmonyDialect(choice, vocabulary)
    return MarkerDialect(choice, vocabulary)
