"""Strings of a schema as raw text: for markup in which a value stands between tags and not in quotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumbline.structured_output.grammar.custom_input import one_line
from plumbline.structured_output.grammar.ecma_regex import FORMATS, NOTED_FORMATS, searched, translated
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.structured_output.grammar.rust_regex import pieces
from plumbline.turn import LarkFormat, RegexFormat

__all__ = ["INPUT_FORM", "TEXT_KEYWORDS", "input_form", "text_conditions"]

INPUT_FORM = "x-plumbline-input"
"""The keyword under which the schema of a custom tool's input has the form of that input. The value is a form, which no
client can write into a schema of its own."""

TEXT_KEYWORDS = frozenset(("minLength", "maxLength", "pattern", "format"))
"""What a schema may ask of a string that is held in raw text as well."""

_MAX_LENGTH = 9999


def input_form(schema: Any) -> RegexFormat | LarkFormat | None:
    """The form of a custom tool's input, if the schema is of one that has any."""
    form = schema.get(INPUT_FORM) if isinstance(schema, Mapping) else None
    return form if isinstance(form, RegexFormat | LarkFormat) else None


def text_conditions(schema: Mapping[str, Any]) -> list[str]:
    """What a schema asks of a string, as expressions of a lexeme, all of which hold.

    Raises:
        FormError: it asks for what cannot be held.
    """
    found: list[str] = []
    if "pattern" in schema:
        found.append(_matching(searched(translated(str(schema["pattern"])))))
    if "format" in schema and schema["format"] not in NOTED_FORMATS:
        known = _FORMATS.get(str(schema["format"]))
        if known is None:
            raise ConstraintError(f"The format {str(schema['format'])[:40]!r} cannot be held in raw text.")
        found.append(_matching(searched(known)))
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        if max(least, most or 0) > _MAX_LENGTH:
            raise ConstraintError(
                f"A length of more than {_MAX_LENGTH} characters cannot be held in raw text."
            )
        found.append(f"/(?s:.){{{int(least)},{'' if most is None else int(most)}}}/")
    return found


def _matching(pattern: str) -> str:
    read = "".join(piece if isinstance(piece, str) else f"[{piece.inside}]" for piece in pieces(pattern))
    return f"/{one_line(read)}/"


_HEX = "[0-9a-fA-F]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS = {
    **FORMATS,
    "uuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "ipv4": rf"^{_BYTE}(?:\.{_BYTE}){{3}}$",
}
