"""Read chat answers for checks, and raise `Inconclusive` for an answer that a check cannot use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Untestable
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import AnsweredCall, Choice, fold, is_stream, objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.transcript.sse import load_json

__all__ = [
    "THINKING_MARKS",
    "WITHHELD",
    "called",
    "choice",
    "choices",
    "chunks",
    "deltas",
    "finished",
    "is_stream",
    "parsed",
    "stream_of",
    "token_texts",
    "whole_of",
]

WITHHELD = ("content_filter", "refusal")
"""Reasons of an answer that a filter or the model ended; a server is free to end any answer so."""

THINKING_MARKS = ("<think", "</think", "<|channel|>", "[THINK]", "<seed:think>", "◁think▷")
"""Markup of thinking that a server left in an answer."""


def token_texts(entries: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check that each token is the text of its bytes, such as ` a` and not `Ġa` (LP-03).

    Bytes that are a part of a character have no text.
    """
    for number, entry in enumerate(entries):
        for one in [entry, *objects_in(entry.get("top_logprobs"))]:
            token, octets = one.get("token"), one.get("bytes")
            if not isinstance(token, str) or not isinstance(octets, list) or not octets:
                continue
            try:
                text = bytes(octets).decode()
            except (ValueError, TypeError):
                continue
            if token != text:
                where = f"logprobs.content[{number}].token"
                yield Problem(expected=as_json(text)[:200], actual=as_json(token)[:200], pointer=where)
                return


def whole_of(seen: Transcript) -> Exchange:
    """Return the whole answer of a scenario that sends one request with and without streaming."""
    return accepted(at(seen, "whole"))


def stream_of(seen: Transcript) -> Exchange:
    """Return the streamed answer of such a scenario."""
    return accepted(at(seen, "stream"))


def chunks(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the chunks of a stream that are objects."""
    return objects_in(accepted(exchange).chunks)


def deltas(exchange: Exchange) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Yield every choice of every chunk: the number of the chunk, the choice and its delta."""
    for number, chunk in enumerate(chunks(exchange)):
        for one in objects_in(chunk.get("choices")):
            delta = one.get("delta")
            yield number, one, delta if isinstance(delta, dict) else {}


def choices(exchange: Exchange) -> list[Choice]:
    """Return the choices of an answer in the order of their index."""
    return fold("chat", accepted(exchange)).choices


def choice(exchange: Exchange) -> Choice:
    """Return the first choice.

    Raises:
        Inconclusive: the answer has no choice.
    """
    found = choices(exchange)
    if not found:
        raise Inconclusive("the answer has no choice; another check reports that")
    return found[0]


def finished(found: Choice) -> Choice:
    """Return a choice that is an answer: half a document proves nothing, nor does what a model says in place of one.

    Raises:
        Inconclusive: the token limit cut it, or the model refused.
    """
    if found.refusal and not found.calls:
        raise Inconclusive("the model refused to answer")
    if found.finish_reason == "length":
        raise Inconclusive("the token limit cut the answer")
    if found.finish_reason == "content_filter" and not found.calls:
        raise Inconclusive("a content filter cut the answer")
    return found


def called(exchange: Exchange, *, forced: bool = False) -> list[AnsweredCall]:
    """Return the calls of the first choice. A model is free not to call, unless the request forces it to.

    Raises:
        Inconclusive: the model called no tool.
        Untestable: the same, although the request forces a call.
    """
    found = finished(choice(exchange))
    if not found.calls:
        if forced:
            raise Untestable("a call was forced, and none was made")
        raise Inconclusive("the model called no tool")
    return found.calls


def parsed(text: str) -> Any:
    """Return the JSON document in a text; None if the text is not JSON."""
    return load_json(text)
