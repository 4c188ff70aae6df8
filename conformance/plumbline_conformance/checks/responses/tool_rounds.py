"""Check custom tools and the outputs of calls on the Responses API."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import parsed
from plumbline_conformance.checks.common import follow_up_accepted, whole_shapes
from plumbline_conformance.checks.laws import both, either, stream
from plumbline_conformance.checks.request_reader import requested_limit, requested_tools
from plumbline_conformance.checks.responses.shared_laws import create_response, events, items, pair, response
from plumbline_conformance.checks.responses.tools import (
    CALL,
    CUSTOM,
    NEEDS,
    QUESTION,
    calls_of,
    events_in_order,
    one_function,
)
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript


def _custom(target: Target) -> dict[str, object]:
    choice = {"type": "custom", "name": "write"}
    tool = tools.flat(tools.words)
    grammar = tool["format"]["grammar"]
    tool = {**tool, "format": {"type": "grammar", **grammar}}
    return create_response(target, "Use write with 2024.", tools=[tool], tool_choice=choice)


pair("responses/tool-custom", "A custom tool whose input is one line of a grammar", _custom, needs=NEEDS)


def _long_call(target: Target) -> dict[str, object]:
    flags = [tools.flat(tool) for tool in tools.flipping()["tools"]]
    choice = {"type": "function", "name": "set_flags"}
    return create_response(target, tools.FLIP, tools=flags, tool_choice=choice, max_output_tokens=24)


pair("responses/call-cut", "A call that the token limit cuts", _long_call, needs=NEEDS)


@both(
    "responses/call-cut/incomplete",
    ("Mark a call that the limit cut as incomplete", "R-05"),
    ("Mark a streamed call that the limit cut as incomplete", "R-05"),
)
def _cut(exchange: Exchange) -> Iterator[Problem]:
    """Check the last call: arguments that end before the JSON does, at the limit, are incomplete with their response.

    A model without a grammar may also write and end a call that is not JSON. That is no cut call.
    """
    calls = [item for item in items(exchange) if item.get("type") == CALL]
    if not calls:
        raise Inconclusive("the answer has no call")
    if parsed(str(calls[-1].get("arguments"))) is not None:
        raise NotRequested("the call is complete")
    answer = response(exchange)
    states = [calls[-1].get("status"), answer.get("status")]
    usage, limit = answer.get("usage"), requested_limit(exchange)
    used = usage.get("output_tokens") if isinstance(usage, dict) else None
    if "incomplete" not in states and isinstance(used, int) and used < limit:
        raise Inconclusive(f"the model ended the call, which is not JSON, after {used} of {limit} tokens")
    if states != ["incomplete", "incomplete"]:
        shown = as_json(states)
        yield Problem(expected="incomplete, twice", actual=shown, pointer="output[].status, status")


@either("responses/tool-custom/input", "Give a custom tool input that matches its grammar", "TOOL-14")
def _grammar_input(exchange: Exchange) -> Iterator[Problem]:
    """Check the input of the scenario's tool (four digits), but not the input of other requests."""
    ours = (
        requested_tools(exchange).get("write", {}).get("description")
        == tools.flat(tools.words)["description"]
    )
    for call in calls_of(exchange, CUSTOM, forced=True):
        if ours and not re.fullmatch("[0-9]{4}", str(call.get("input"))):
            yield Problem(expected="four digits", actual=as_json(call.get("input"))[:200], pointer="input")


@stream("responses/tool-custom/events", "Send the events of a custom call in order", "RS-11")
def _custom_events(exchange: Exchange) -> Iterator[Problem]:
    yield from events_in_order(
        events(exchange), calls_of(exchange, CUSTOM, forced=True), "custom_tool_call_input"
    )


@scenario(
    "responses/tool-round",
    "A call and its output, with and without a message between",
    needs=("responses", "tools"),
)
def tool_round(target: Target) -> Generator[Request, Exchange, None]:
    """Send the server's items back unchanged, or a made-up call if it made no call."""
    first = yield Request(name="call", path="/responses", json=one_function(target))
    try:
        made = [item for item in first.json["output"] if isinstance(item["type"], str)]
        calls = [item for item in made if item["type"] == CALL and isinstance(item["call_id"], str)]
    except (LookupError, TypeError):
        made, calls = [], []
    if not calls:
        made = calls = [{"type": CALL, "call_id": "call_1", "name": "get_weather", "arguments": "{}"}]
    question = [{"role": "user", "content": QUESTION}]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "21 degrees"} for call in calls
    ]
    between = [{"role": "user", "content": "Wait."}]
    parts = [{**output, "output": [{"type": "input_text", "text": "21 degrees"}]} for output in outputs]
    sent_back = {
        "output": [*question, *made, *outputs],
        "output_apart": [*question, *made, *between, *outputs],
        "output_in_parts": [*question, *made, *parts],
    }
    for name, given in sent_back.items():
        yield Request(name=name, path="/responses", json={**one_function(target), "input": given})


whole_shapes("responses/tool-round", "Response", "call", "output", "output_apart", "output_in_parts")


@check(
    "responses/tool-round/answered",
    "Accept the server's own items with the output of the call",
    "TOOL-10",
)
def round_answered(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "call", "output")


@check("responses/tool-round/apart", "Pair outputs with calls by call_id, with a message between", "TOOL-11")
def round_apart(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "call", "output_apart")


@check("responses/tool-round/parts", "Accept the output of a call as content parts", "TOOL-10")
def round_parts(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "call", "output_in_parts")
