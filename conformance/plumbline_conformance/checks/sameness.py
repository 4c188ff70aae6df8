"""Compare a streaming with a non-streaming answer, allowing for non-deterministic servers.

Temperature 0 does not guarantee equal answers, because the batch size changes the order of additions. If the answers
differ, both requests are sent again. Only a server that repeats both answers breaks the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from plumbline_conformance.checks.common import accepted, group
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.suite.scenario import Broken, Inconclusive, Problem, Rejected, Request, Unsteady
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["same", "whole_and_streamed"]

Extract = Callable[[Exchange], object]
"""Extracts the content of an answer in a form that can be compared."""
Content = TypeVar("Content")


def whole_and_streamed(
    path: str, body: dict[str, object], of_whole: Extract, of_stream: Extract
) -> Generator[Request, Exchange, None]:
    """Send a request without and with `stream`, and both again if the answers differ.

    Args:
        path: the path below the root of the API.
        body: the request without `stream`.
        of_whole: extracts the content of a non-streaming answer.
        of_stream: extracts the content of a stream.
    """
    for again in ("", "/2"):
        whole = yield Request(name=f"{WHOLE}{again}", path=path, json=body)
        streamed = yield Request(name=f"{STREAM}{again}", path=path, json={**body, "stream": True})
        try:
            if of_whole(accepted(whole)) == of_stream(streamed):
                return
        except (Inconclusive, Rejected, Broken, LookupError, TypeError, AttributeError):
            return  # The schema checks report the faults.


def same(
    seen: Transcript,
    of_whole: Callable[[Exchange], Content],
    of_stream: Callable[[Exchange], Content],
    rule: Callable[[Content, Content], str] | None = None,
) -> Iterator[Problem]:
    """Check that the stream has the content of the non-streaming answer (CHAT-19, CS-05, RS-16).

    Args:
        seen: the transcript of `whole_and_streamed`.
        of_whole: extracts the content of a non-streaming answer.
        of_stream: extracts the content of a stream.
        rule: returns the rule that a difference breaks, for checks with several rules.
    """
    asked, streamed = group(seen, WHOLE), group(seen, STREAM)
    try:
        wholes = [of_whole(accepted(exchange)) for exchange in asked]
        streams = [of_stream(exchange) for exchange in streamed]
    except (LookupError, TypeError, AttributeError) as error:
        raise Inconclusive("the answers do not match their schema; other checks report this") from error
    if wholes[0] == streams[0]:
        return
    if len(wholes) < 2 or wholes[0] != wholes[1] or streams[0] != streams[-1]:
        raise Unsteady
    broken = rule(wholes[0], streams[0]) if rule is not None else ""
    wanted = f"streamed as without streaming: {as_json(wholes[0])[:400]}"
    shown = f"streamed: {as_json(streams[0])[:400]}"
    where = streamed[0].name
    yield Problem(expected=wanted, actual=shown, pointer="the text", rule=broken, exchange=where)
