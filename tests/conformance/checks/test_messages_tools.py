"""Test that the input of a forced call of Messages is judged only if the call is there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plumbline_conformance.checks.messages.tools import TOOLS, input_fits
from plumbline_conformance.suite.scenario import Inconclusive, NotRequested
from plumbline_conformance.transcript.exchange import Exchange

FORCED = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}}


def exchange(request: dict[str, Any], *content: dict[str, Any]) -> Exchange:
    body = {"type": "message", "content": content, "stop_reason": "tool_use"}
    frames = [(0.0, json.dumps(body).encode())]
    asked = json.dumps(request).encode()
    return Exchange(
        method="POST", url="http://a", request_headers={}, request_body=asked, status=200, frames=frames
    )


def used(name: str, **given: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_1", "name": name, "input": given}


@pytest.mark.parametrize(("given", "count"), [({"city": "Rome"}, 0), ({"zone": "x"}, 1)])
def test_the_input_of_the_forced_call_fits_its_schema(given: dict[str, str], count: int) -> None:
    assert len(list(input_fits(exchange(FORCED, used("get_weather", **given))))) == count


@pytest.mark.parametrize("content", [[], [used("get_time", zone="x")], [{"type": "text", "text": "no"}]])
def test_without_the_forced_call_there_is_no_verdict(content: list[dict[str, Any]]) -> None:
    with pytest.raises(Inconclusive):
        list(input_fits(exchange(FORCED, *content)))


@pytest.mark.parametrize(
    "request_", [{}, {"tools": TOOLS}, {**FORCED, "tools": []}, {**FORCED, "tool_choice": {"type": "any"}}]
)
def test_a_request_that_forces_no_known_tool_asks_for_nothing(request_: dict[str, Any]) -> None:
    with pytest.raises(NotRequested):
        list(input_fits(exchange(request_, used("get_weather", city="Rome"))))
