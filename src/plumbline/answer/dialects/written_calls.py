"""Write earlier calls into the text of an answer, for chat templates that have no place for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import DialectChoice
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Section

__all__ = ["CallWriter"]

_PLAIN: Final = Section(call_format=JsonCall(), between="\n")
"""A call in plain JSON, which is read from a model without a dialect as well (`unmarked.py`)."""


class CallWriter:
    """Write calls as a model does: in its dialect, or as plain JSON if it has none.

    >>> CallWriter(DialectChoice(None, None))([WrittenCall("look", '{"at": "Paris"}')], True)
    '\\n{"name": "look", "arguments": {"at": "Paris"}}'
    """

    def __init__(self, choice: DialectChoice) -> None:
        tool = choice.tool
        # Calls that are messages have headers, which stand in no text.
        in_text = tool is not None and not tool.messages
        self._section = tool.sections[0] if tool is not None and in_text else _PLAIN
        self._gap = tool.content_gap if tool is not None and in_text else "\n"
        self.name = tool.name if tool is not None and in_text else "plain JSON"

    def __call__(self, calls: Sequence[WrittenCall], after_text: bool) -> str:
        """Return the markup of calls, after a text with the white space before it."""
        return (self._gap if after_text else "") + render_calls(list(calls), self._section)
