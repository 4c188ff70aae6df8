"""Feed answers to parsers in pieces, and fold the events into a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.events import (
    FinishReason,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

__all__ = ["Folded", "Parsed", "cut", "fold", "parse"]

Folded = list[tuple[str, ...]]
"""`("reasoning", text)`, `("text", text)` and `("call", name, arguments, "whole" or "cut")` in their order."""


@dataclass
class Parsed:
    """The result of parsing an output."""

    folded: Folded
    warnings: list[str]
    events: list[OutputEvent] = field(repr=False)


def fold(events: Sequence[OutputEvent]) -> Folded:
    """Fold events into the parts of a message."""
    folded: list[list[str]] = []
    for event in events:
        match event:
            case TextDelta() | ReasoningDelta():
                kind = "text" if isinstance(event, TextDelta) else "reasoning"
                if folded and folded[-1][0] == kind:
                    folded[-1][1] += event.text
                elif event.text:
                    folded.append([kind, event.text])
            case ToolCallStart():
                folded.append(["call", event.name, ""])
            case ToolCallDelta():
                folded[-1][2] += event.arguments
            case ToolCallEnd():
                folded[-1].append("whole" if event.complete else "cut")
    return [tuple(part) for part in folded]


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    """The text in pieces of these sizes, over and over."""
    pieces: list[str] = []
    at = number = 0
    while at < len(text):
        size = max(1, sizes[number % len(sizes)]) if sizes else len(text)
        pieces.append(text[at : at + size])
        at += size
        number += 1
    return pieces


def parse(make: Callable[[], AnswerParser], pieces: Sequence[str], reason: FinishReason = "stop") -> Parsed:
    """Feed the pieces to a fresh parser."""
    parser = make()
    events: list[OutputEvent] = []
    for piece in pieces:
        events += parser.push(TextDelta(piece))
    events += parser.finish(reason)
    return Parsed(fold(events), list(parser.warnings), events)
