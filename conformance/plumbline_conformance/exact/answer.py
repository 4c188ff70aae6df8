"""Read the reasoning, text, calls and finish reason of an answer."""

from __future__ import annotations

import msgspec

from plumbline_conformance.transcript.answer_fold import Answer as FoldedAnswer
from plumbline_conformance.transcript.answer_fold import Fault, Surface, fold, is_stream
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["ReceivedAnswer", "ReceivedCall", "Surface", "answer_of"]

_UNREADABLE: frozenset[Fault] = frozenset(
    {"envelope", "choice", "message", "text", "reasoning", "calls", "finish"}
)


class ReceivedCall(msgspec.Struct, frozen=True):
    """A call as a client gets it."""

    name: str
    arguments: str


class ReceivedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The message of an answer."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ReceivedCall, ...] = ()
    finish: str = ""
    """`stop`, `length` or `tool_calls`; `stop` for a completed response without calls."""


def answer_of(surface: Surface, exchange: Exchange) -> ReceivedAnswer | None:
    """Return the message, or None if the exchange failed or its answer is malformed."""
    if exchange.error is not None or exchange.status != 200:
        return None
    answer = fold(surface, exchange)
    if answer.faults & _UNREADABLE or (not answer.choices and not is_stream(exchange)):
        return None
    choices = answer.choices
    calls = [call for choice in choices for call in choice.calls]
    if any(call.custom for call in calls):
        return None
    return ReceivedAnswer(
        reasoning="".join(choice.reasoning + choice.summary for choice in choices),
        content="".join(choice.content for choice in choices),
        calls=tuple(ReceivedCall(call.name, call.arguments) for call in calls),
        finish=_finish(answer, bool(calls)) if surface == "responses" else _last(answer),
    )


def _last(answer: FoldedAnswer) -> str:
    return str(answer.finish_reasons[-1]) if answer.finish_reasons else ""


def _finish(answer: FoldedAnswer, called: bool) -> str:
    """Translate the status of a response to a finish reason of chat completions."""
    if not answer.finish_reasons:
        return ""
    status, *reasons = answer.finish_reasons
    if status == "completed":
        return "tool_calls" if called else "stop"
    return "length" if "max_output_tokens" in reasons else str(status)
