"""Check that a continuation has the same context as the same history sent whole (ST-04)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, at, usage_count
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.responses.stored.lifecycle import id_of
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import Problem, Rejected, Request, Target, check, scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
BRIEF: dict[str, Any] = {"max_output_tokens": 16, "store": True}


@scenario(
    "responses/same-history",
    "A continuation, and the same conversation sent whole",
    needs=("responses", "stored"),
)
def same_history(target: Target) -> Steps:
    made = yield Request(
        name="first", path="/responses", json=create_response(target, "My name is Ada.", **BRIEF)
    )
    name, output = id_of(made), made.json.get("output") if isinstance(made.json, dict) else None
    if name is None or not isinstance(output, list):
        return
    body = create_response(target, "Who am I?", previous_response_id=name, **BRIEF)
    yield Request(name="continued", path="/responses", json=body)
    whole = [*user("My name is Ada."), *output, *user("Who am I?")]
    yield Request(name="whole", path="/responses", json=create_response(target, whole, **BRIEF))


@check(
    "responses/same-history/same-prompt",
    "Show the model the same tokens for a continuation as for its whole history",
    "ST-04",
    request="continued",
)
def same_prompt(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "first"))
    if at(seen, "whole").status in (400, 422):
        raise Rejected("the server refuses items of its own output; another check reports this")
    found = usage_count(at(seen, "continued"), "input_tokens")
    wanted = usage_count(at(seen, "whole"), "input_tokens")
    if found != wanted:
        shown = f"{wanted}, as for the whole history"
        yield Problem(expected=shown, actual=str(found), pointer="usage.input_tokens")
