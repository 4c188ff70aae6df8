"""Write utterances in a dialect, from the same data that parsers read them with."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

import msgspec

from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect, Utterance

__all__ = ["openings", "render_calls", "render_utterance", "section_opening", "text_header"]


def render_utterance(
    utterance: Utterance, tool: ToolDialect | None, reasoning: ReasoningDialect | None
) -> str:
    """Write an utterance as a model of these dialects does, from the beginning of its turn to its end."""
    parts: list[str] = []
    if utterance.reasoning is not None and reasoning is not None:
        parts += [reasoning.open[0], reasoning.after_open, utterance.reasoning]
        parts += [reasoning.before_close, reasoning.close[0], reasoning.after_close]
    header = text_header(tool, reasoning)
    position = number = 0
    given = utterance.parts
    while position < len(given):
        part = given[position]
        if isinstance(part, str):
            parts += [header, part]
            position += 1
            continue
        end = position
        while end < len(given) and isinstance(given[end], WrittenCall):
            end += 1
        calls = [
            msgspec.structs.replace(call, number=number + index)
            for index, call in enumerate(given[position:end])
            if isinstance(call, WrittenCall)
        ]
        number += len(calls)
        assert tool is not None, "calls need a tool dialect"
        gap = tool.content_gap
        if position and gap:
            parts.append(gap)
        parts.append(render_calls(calls, tool.sections[0]))
        if end < len(given) and gap:
            parts.append(gap)
        position = end
    return "".join(parts)


def render_calls(calls: list[WrittenCall], section: Section) -> str:
    """Write calls that follow each other, with the markers around them."""
    if section.holds_one_call:
        return section.between.join(_section([call], section) for call in calls)
    return _section(calls, section)


def openings(tool: ToolDialect, names: Iterable[str]) -> tuple[str, ...]:
    """Return the texts that an answer of calls alone begins with.

    Empty where calls are messages, because the header of a message marks it as a call.
    """
    section = tool.sections[0]
    if tool.messages:
        return ()
    if section.recipient:
        return tuple(section_opening(section, name) for name in names)
    return section.open[:1] or tuple(_opening(section, name) for name in names)


def section_opening(section: Section, name: str) -> str:
    """Return the marker that a section of calls of this tool begins with, and what stands before it."""
    return section.recipient.replace("{name}", name) + "".join(section.open[:1])


def text_header(tool: ToolDialect | None, reasoning: ReasoningDialect | None) -> str:
    """Return what models of these dialects write before text."""
    return (tool.text_header if tool else "") or (reasoning.text_header if reasoning else "")


def _opening(section: Section, name: str) -> str:
    """Return what bare calls of a tool begin with, whatever their arguments are."""
    one, other = (render_calls([WrittenCall(name, arguments)], section) for arguments in ("{}", '{"a": 1}'))
    return "".join(
        char for char, _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False))
    )


def _section(calls: list[WrittenCall], section: Section) -> str:
    calls_ = [section.item_open + section.call_format.write(call) + section.item_close for call in calls]
    body = (", " if section.array else section.between).join(calls_)
    if section.array:
        body = f"[{body}]"
    return "".join(
        (
            section_opening(section, calls[0].name),
            section.after_open,
            body,
            section.before_close,
            section.close[0] if section.close else "",
        )
    )
