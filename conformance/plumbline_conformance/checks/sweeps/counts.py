"""Check that tokens are counted with everything that a request shows the model: tools, history, system messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import accepted, at, usage_count
from plumbline_conformance.checks.messages.fold import prompt_tokens
from plumbline_conformance.checks.messages.texts import COUNT, PATH, SYSTEM, message, near
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import (
    Broken,
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Steps = Generator[Request, Exchange, None]
COUNTED = ", counted"
"""Ends the name of the request that counts."""
RESULT = "It is sunny and 24 degrees, with a light wind from the west."
WEATHER: Fields = {
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "input_schema": tools.weather["function"]["parameters"],
}
MESSAGES: dict[str, Fields] = {
    "system": {"system": [{"type": "text", "text": SYSTEM}]},
    "tools": {"tools": [WEATHER]},
    "history": {
        "tools": [WEATHER],
        "messages": [
            *user("Weather in Paris?"),
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": RESULT}],
            },
        ],
    },
}
CALL = {"call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'}
RESPONSES: dict[str, Fields] = {
    "instructions": {"instructions": SYSTEM},
    "tools": {"tools": [tools.flat(tools.weather)]},
    "history": {
        "tools": [tools.flat(tools.weather)],
        "input": [
            *user("Weather in Paris?"),
            {"type": "function_call", **CALL},
            {"type": "function_call_output", "call_id": "call_1", "output": RESULT},
        ],
    },
}
"""By part: what a request has beside its model."""


def _counted(exchange: Exchange) -> int:
    found = accepted(exchange).json
    number = found.get("input_tokens") if isinstance(found, dict) else None
    if not isinstance(number, int):
        raise Inconclusive("the count has no number; another check reports this")
    return number


def _compared(
    seen: Transcript,
    parts: dict[str, Fields],
    used: Callable[[Exchange], int],
    equal: Callable[[int, int], bool],
) -> Iterator[Problem]:
    """Compare each count with the prompt of the same request; a part that the API refuses is left out.

    Raises:
        Broken, Inconclusive, Rejected: what the first part met, if no part was answered.
    """
    compared = 0
    met: Exception | None = None
    for part in parts:
        try:
            wanted = used(accepted(at(seen, part)))
        except (Broken, Inconclusive, Rejected) as error:
            met = met or error
            continue
        found = _counted(at(seen, f"{part}{COUNTED}"))
        compared += 1
        if not equal(found, wanted):
            where = {"pointer": "input_tokens", "exchange": f"{part}{COUNTED}"}
            yield Problem(
                expected=f"{wanted}, as the request with {part} has", actual=as_json(found), **where
            )
    if not compared and met is not None:
        raise met


@scenario("messages/counts", "Messages with system, tools and results, and their counts", needs=("messages",))
def messages_counts(target: Target) -> Steps:
    for part, fields in MESSAGES.items():
        asked = message(target, **fields)
        yield Request(name=part, path=PATH, json=asked)
        counted = {name: value for name, value in asked.items() if name in ("model", "messages", *fields)}
        yield Request(name=f"{part}{COUNTED}", path=COUNT, json=counted)


@check("messages/counts/same", "Count system, tools and results as the message does", "MSG-12")
def messages_same(seen: Transcript) -> Iterator[Problem]:
    yield from _compared(seen, MESSAGES, prompt_tokens, near)


@scenario(
    "responses/counts",
    "Responses with instructions, tools and outputs, and their counts",
    needs=("responses", "count"),
)
def responses_counts(target: Target) -> Steps:
    for part, fields in RESPONSES.items():
        body = create_response(target, fields.get("input", "Hi there"), max_output_tokens=16)
        yield Request(name=part, path="/responses", json={**body, **fields})
        counted = {"model": target.model, "input": "Hi there", **fields}
        yield Request(name=f"{part}{COUNTED}", path="/responses/input_tokens", json=counted)


@check("responses/counts/same", "Count instructions, tools and outputs as the response does", "R-15")
def responses_same(seen: Transcript) -> Iterator[Problem]:
    yield from _compared(
        seen, RESPONSES, lambda one: usage_count(one, "input_tokens"), lambda found, wanted: found == wanted
    )
