"""Read calls that stand as plain JSON: small models write them so, whatever markup their family has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.registry import DialectChoice
from plumbline.answer.dialects.spec.dialect import NewId, Section, ToolDialect
from plumbline.answer.events import TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

__all__ = ["UnmarkedCall", "first_of_several", "is_meant_as_call", "may_become_calls", "unmarked_calls"]

_FENCE = ("```json", "```")
_DIALECT = build_dialect(
    DialectChoice(
        ToolDialect(
            name="unmarked",
            sections=tuple(
                Section(
                    call_format=JsonCall(), open=opens, close=opens[1:], starts=starts, array=starts == "["
                )
                for opens in ((), _FENCE)
                for starts in "{["
            ),
        ),
        None,
    )
)
_BEGINNINGS = ('{"', '[{"', '```{"', '```[{"', '```json{"', '```json[{"')
"""What calls begin with, without white space."""
_LONGEST_BEGINNING = 128
"""Characters that are looked at."""
_DECODER = json.JSONDecoder(strict=False)
_SECOND = re.compile(r'[}`](?:json)?\s*\{\s*"')
"""What a second object begins with. Within the first one it has a comma or an escaped quote, so that a long call is not
decoded again with each token."""


class UnmarkedCall(NamedTuple):
    """A call of a declared tool."""

    start: ToolCallStart
    arguments: str


def may_become_calls(text: str) -> bool:
    """Return whether a text may be the beginning of calls in plain JSON, fenced or not.

    >>> [may_become_calls(text) for text in ("", "\\n``", "```json\\n[{", '{"name": "f"', "{}", "```py", "Well")]
    [True, True, True, True, False, False, False]
    """
    begun = "".join(text[:_LONGEST_BEGINNING].split())
    return any(begun.startswith(form) or form.startswith(begun) for form in _BEGINNINGS)


def is_meant_as_call(text: str) -> bool:
    """Return whether a whole text is a call, or a list of calls, of any tool.

    >>> is_meant_as_call('```json\\n[{"name": "f", "arguments": {}}]\\n```'), is_meant_as_call('{"name": "Ada"}')
    (True, False)
    """
    bare = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        found = _DECODER.decode(bare.strip())
    except (ValueError, RecursionError):
        return False
    calls = found if isinstance(found, list) else [found]
    return bool(calls) and all(
        isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("arguments", call.get("parameters")), dict)
        for call in calls
    )


def first_of_several(text: str) -> str | None:
    """Return the first JSON object of a text after which another one begins, with its fence; None if none does.

    >>> first_of_several('{"name": "f"}\\n{"'), first_of_several('{"name": "f"} is JSON'), first_of_several('{"n')
    ('{"name": "f"}', None, None)
    """
    if not _SECOND.search(text, max(0, len(text) - _LONGEST_BEGINNING)):
        return None
    opening = text.find("{")
    try:
        _, end = _DECODER.raw_decode(text, opening)
    except (ValueError, RecursionError):
        return None
    if text[:opening].strip():
        closing = text.find("```", end)
        if closing < 0 or text[end:closing].strip():
            return None
        end = closing + len("```")
    rest = "".join(text[end : end + _LONGEST_BEGINNING].split())
    return text[:end] if rest.startswith(_BEGINNINGS) else None


def unmarked_calls(
    text: str, tools: Mapping[str, Mapping[str, Any]], new_id: NewId, earlier_calls: int
) -> list[UnmarkedCall]:
    """Return the calls that a whole text is; none if it is anything else.

    Args:
        text: the text of an answer that has ended by itself.
        tools: the parameters of each tool that may be called.
        new_id: makes the ids of calls.
        earlier_calls: how many calls the conversation has had.
    """
    parser = _DIALECT.parser(tools, _DIALECT.frame(()), earlier_calls=earlier_calls, new_id=new_id)
    calls: list[UnmarkedCall] = []
    for event in (*parser.push(TextDelta(text)), *parser.finish("stop")):
        match event:
            case ToolCallStart():
                calls.append(UnmarkedCall(event, ""))
            case ToolCallDelta():
                calls[-1] = calls[-1]._replace(arguments=calls[-1].arguments + event.arguments)
            case ToolCallEnd(complete=False):
                return []
            case TextDelta() if event.text.strip():
                return []
    return calls
