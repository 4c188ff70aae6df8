"""Translate string schemas to conditions on unquoted strings, for call formats with values between tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumbline.answer.structured_output.grammar.custom_input import one_line
from plumbline.answer.structured_output.grammar.ecma_regex import TEXT_FORMATS, match_whole, to_rust_regex
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.rust_regex import pieces
from plumbline.answer.turn import LarkFormat, RegexFormat

__all__ = ["INPUT_CONSTRAINT", "TEXT_KEYWORDS", "input_constraint", "text_conditions"]

INPUT_CONSTRAINT = "x-plumbline-input"
"""The keyword for the constraint of a custom tool's input. Its value is a `RegexFormat` or `LarkFormat` object, which
a client cannot put into a schema."""

TEXT_KEYWORDS = frozenset(("minLength", "maxLength", "pattern", "format"))
"""Keywords of string schemas that are enforced in unquoted strings."""

_MAX_LENGTH = 9999


def input_constraint(schema: Any) -> RegexFormat | LarkFormat | None:
    """Return the constraint of a custom tool's input, if the schema has one."""
    constraint = schema.get(INPUT_CONSTRAINT) if isinstance(schema, Mapping) else None
    return constraint if isinstance(constraint, RegexFormat | LarkFormat) else None


def text_conditions(schema: Mapping[str, Any]) -> list[str]:
    """Return the conditions of a string schema as expressions of a lexeme, to be combined with `&`.

    Raises:
        ConstraintError: a condition cannot be enforced.
    """
    found: list[str] = []
    if "pattern" in schema:
        found.append(_matching(match_whole(to_rust_regex(str(schema["pattern"])))))
    known = TEXT_FORMATS.get(str(schema.get("format")))
    if known is not None:  # Others are annotations.
        found.append(_matching(match_whole(known)))
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        if max(least, most or 0) > _MAX_LENGTH:
            raise ConstraintError(
                f"A length of more than {_MAX_LENGTH} characters cannot be enforced in unquoted text."
            )
        found.append(f"/(?s:.){{{int(least)},{'' if most is None else int(most)}}}/")
    return found


def _matching(pattern: str) -> str:
    read = "".join(piece if isinstance(piece, str) else f"[{piece.inside}]" for piece in pieces(pattern))
    return f"/{one_line(read)}/"
