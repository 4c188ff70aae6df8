"""A stream says what the same request says in one piece: asked so that a server whose arithmetic varies is not blamed.

Temperature 0 promises little: batches of another size add numbers in another order. Where the two answers differ, both
requests are sent once more, and only a server that repeats itself in each and still differs between them breaks the
rule.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.suite.model import Broken, Inconclusive, Problem, Rejected, Request
from plumbline_conformance.transcript.model import Exchange, Transcript

__all__ = ["same", "whole_and_streamed"]

Reading = Callable[[Exchange], object]
"""What an answer says, in a form that whole and streamed answers share."""
Content = TypeVar("Content")


def whole_and_streamed(
    path: str, body: dict[str, object], of_whole: Reading, of_stream: Reading
) -> Generator[Request, Exchange, None]:
    """Two requests, or four if their answers differ. The last one is a stream in either case."""
    for _ in range(2):
        whole = yield Request(path=path, json=body)
        streamed = yield Request(path=path, json={**body, "stream": True})
        try:
            if of_whole(accepted(whole)) == of_stream(streamed):
                return
        except (Inconclusive, Rejected, Broken, LookupError, TypeError, AttributeError):
            return  # The checks of shape will say what is wrong.


def same(
    seen: Transcript,
    of_whole: Callable[[Exchange], Content],
    of_stream: Callable[[Exchange], Content],
    rule: Callable[[Content, Content], str] | None = None,
) -> Iterator[Problem]:
    """CHAT-19, CS-05, RS-16.

    Args:
        seen: the transcript of `whole_and_streamed`.
        of_whole: what the whole answer says.
        of_stream: what the stream says.
        rule: which rule two that differ break, where the check has several.
    """
    at(seen, 1)
    try:
        wholes = [of_whole(accepted(exchange)) for exchange in seen.exchanges[0::2]]
        streams = [of_stream(exchange) for exchange in seen.exchanges[1::2]]
    except (LookupError, TypeError, AttributeError) as error:
        raise Inconclusive("the answers are not of the documented shape; other checks say how") from error
    if wholes[0] == streams[0]:
        return
    if len(wholes) < 2 or wholes[0] != wholes[1] or streams[0] != streams[-1]:
        raise Inconclusive("the same request was answered differently each time")
    broken = rule(wholes[0], streams[0]) if rule is not None else ""
    shown = repr(streams[0])[:400]
    yield Problem(expected=repr(wholes[0])[:400], actual=shown, pointer="the text", rule=broken)
