"""Tools on the Responses API."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answer_fold import parsed
from plumbline_conformance.checks.common import taken, whole_shapes
from plumbline_conformance.checks.laws import both, either, stream, whole
from plumbline_conformance.checks.request_reader import allowed_tools, requested_tools
from plumbline_conformance.checks.responses.shared_laws import create_response, events, items, pair, response
from plumbline_conformance.suite.model import (
    Inconclusive,
    Problem,
    Request,
    Target,
    Untestable,
    check,
    scenario,
)
from plumbline_conformance.transcript.model import Exchange, Transcript

QUESTION = "Use get_weather with city Paris."
WEATHER = tools.flat(tools.weather)
TIME = tools.flat(tools.time)
NEEDS = ("tools",)
CALL = "function_call"
CUSTOM = "custom_tool_call"


def _calls(exchange: Exchange, kind: str = CALL, *, forced: bool = False) -> list[dict[str, Any]]:
    if response(exchange).get("status") == "incomplete":
        raise Inconclusive("the token limit cut the answer")
    found = items(exchange, kind)
    if not found:
        if forced:
            raise Untestable("a call was forced, and none was made")
        raise Inconclusive("the model called no tool")
    return found


def _one(target: Target) -> dict[str, object]:
    return create_response(target, QUESTION, tools=[WEATHER])


pair("responses/tool", "A function that may be called", _one, needs=NEEDS)


@both(
    "responses/tool/arguments",
    ("Write arguments as a string that is one JSON object", "TOOL-01"),
    ("Stream fragments that join to one JSON object", "TOOL-01"),
)
def _objects(exchange: Exchange) -> Iterator[Problem]:
    for call in _calls(exchange):
        arguments = call.get("arguments")
        if not isinstance(arguments, str) or not isinstance(parsed(arguments), dict):
            yield Problem(expected="one JSON object", actual=repr(arguments)[:200], pointer="item.arguments")


@whole("responses/tool/known-name", "Call only tools of the request", "TOOL-02")
def _known(exchange: Exchange) -> Iterator[Problem]:
    names = set(requested_tools(exchange))
    found = [call.get("name") for call in _calls(exchange)]
    if any(one not in names for one in found):
        shown = " or ".join(sorted(names))
        yield Problem(expected=f"calls of {shown}", actual=repr(found), pointer="item.name")


@either("responses/tool/call-id", "Give a call an id of 1 to 64 characters that is not its item's", "TOOL-09")
def _call_id(exchange: Exchange) -> Iterator[Problem]:
    calls = _calls(exchange)
    for call in calls:
        name = call.get("call_id")
        if not isinstance(name, str) or not 1 <= len(name) <= 64 or name == call.get("id"):
            shown = repr((name, call.get("id")))[:200]
            yield Problem(expected="a call_id of its own", actual=shown, pointer="item.call_id")
    if len({repr(call.get("call_id")) for call in calls}) != len(calls):
        yield Problem(expected="ids that differ", actual="the same", pointer="item.call_id")


@stream("responses/tool/call-events", "Add a call, stream its arguments, end them, end it", "RS-10")
def _call_events(exchange: Exchange) -> Iterator[Problem]:
    yield from _ordered(events(exchange), _calls(exchange), "function_call_arguments")


def _ordered(found: list[dict[str, Any]], calls: list[dict[str, Any]], stem: str) -> Iterator[Problem]:
    """What happens to a call, in this order; parts are for messages."""
    wanted = ["output_item.added", f"{stem}.delta", f"{stem}.done", "output_item.done"]
    for call in calls:
        own = [event for event in found if call.get("id") in (event.get("item_id"), _item(event).get("id"))]
        kinds = [str(event.get("type")).removeprefix("response.") for event in own]
        order = list(dict.fromkeys(kinds))
        if [kind for kind in wanted if kind in order or not kind.endswith(".delta")] != order:
            yield Problem(expected=", ".join(wanted), actual=", ".join(order), pointer=str(call.get("id")))


def _item(event: dict[str, Any]) -> dict[str, Any]:
    item = event.get("item")
    return item if isinstance(item, dict) else {}


@stream("responses/tool/added-empty", "Add a call with its name and call_id, and nothing in it yet", "RS-05")
def _added(exchange: Exchange) -> Iterator[Problem]:
    _calls(exchange)
    heads: dict[Any, dict[str, Any]] = {}
    for number, event in enumerate(events(exchange)):
        item = _item(event)
        where = f"event {number}, item"
        if item.get("type") == CALL and event.get("type") == "response.output_item.added":
            heads[item.get("id")] = item
            if item.get("arguments") != "" or not item.get("name") or not item.get("call_id"):
                yield Problem(
                    expected="a name, a call_id, no arguments", actual=repr(item)[:200], pointer=where
                )
        elif item.get("type") == CALL:
            head = heads.get(item.get("id"), {})
            if any(item.get(key) != head.get(key) for key in ("name", "call_id")):
                yield Problem(expected=repr(head)[:200], actual=repr(item)[:200], pointer=where)


@stream("responses/tool/done-arguments", "Say the arguments as a whole when they are done", "RS-10")
def _done(exchange: Exchange) -> Iterator[Problem]:
    wanted = [call.get("arguments") for call in _calls(exchange)]
    ends = [e for e in events(exchange) if e.get("type") == "response.function_call_arguments.done"]
    if [event.get("arguments") for event in ends] != wanted:
        shown = repr([event.get("arguments") for event in ends])[:200]
        yield Problem(expected=repr(wanted)[:200], actual=shown, pointer="arguments")


@whole("responses/tool/completed", "Call a response with calls completed", "R-02", "R-07")
def _completed(exchange: Exchange) -> Iterator[Problem]:
    calls = _calls(exchange)
    states = [response(exchange).get("status"), *(call.get("status") for call in calls)]
    if any(state not in ("completed", None) for state in states) or states[0] is None:
        # The response's own status, or that of an item which nothing has cut.
        rule = "R-02" if states[0] != "completed" else "R-07"
        yield Problem(expected="completed", actual=repr(states), pointer="status", rule=rule)


@whole("responses/tool/ended", "End a response no earlier than it began", "R-03")
def _ended(exchange: Exchange) -> Iterator[Problem]:
    """Whether there is a time at all is a question of its own; within a second the two may be rounded apart."""
    found = response(exchange)
    begun, ended = found.get("created_at"), found.get("completed_at")
    if not isinstance(begun, int | float) or not isinstance(ended, int | float):
        raise Inconclusive("there are no two times to compare")
    if ended < begun - 1:
        yield Problem(expected=f"{begun} or later", actual=repr(ended), pointer="completed_at")


def _two(target: Target) -> dict[str, object]:
    return create_response(target, tools.PLACES, tools=[WEATHER, TIME])


pair("responses/tools", "Two functions that are both asked for", _two, needs=NEEDS)


@whole("responses/tools/ids", "Give every item and every call an id of its own", "R-08", "TOOL-09")
def _distinct_ids(exchange: Exchange) -> Iterator[Problem]:
    calls = _calls(exchange)
    if len(calls) < 2:
        raise Inconclusive("the model made one call only")
    for key in ("id", "call_id"):
        found = [repr(call.get(key)) for call in calls]
        if len(set(found)) != len(found):
            rule, where = "R-08" if key == "id" else "TOOL-09", f"output[].{key}"
            yield Problem(expected="ids that differ", actual=", ".join(found), pointer=where, rule=rule)


@stream("responses/tools/output-index", "Stream items under the places they have in the output", "RS-06")
def _places(exchange: Exchange) -> Iterator[Problem]:
    final = [item.get("id") for item in items(exchange)]
    for number, event in enumerate(events(exchange)):
        place = event.get("output_index")
        if event.get("type") != "response.output_item.done" or not isinstance(place, int):
            continue
        if not 0 <= place < len(final) or final[place] != _item(event).get("id"):
            where = f"event {number}, output_index"
            yield Problem(expected=f"the place of {_item(event).get('id')}", actual=str(place), pointer=where)


def _required(target: Target) -> dict[str, object]:
    return create_response(target, "Hi", tools=[WEATHER, TIME], tool_choice="required")


pair("responses/tool-required", "A call that is required", _required, needs=NEEDS)


@both(
    "responses/tool-required/called",
    ("Call at least one tool where `required` is said", "TOOL-04"),
    ("Stream at least one call where `required` is said", "TOOL-04"),
)
def _some(exchange: Exchange) -> Iterator[Problem]:
    if not _made(exchange):
        yield Problem(expected="a call of some tool", actual="[]", pointer="output")


def _made(exchange: Exchange) -> list[Any]:
    """The names of what was called, in an answer that was not cut."""
    if response(exchange).get("status") == "incomplete":
        raise Inconclusive("the token limit cut the answer")
    return [call.get("name") for kind in (CALL, CUSTOM) for call in items(exchange, kind)]


def _named(target: Target) -> dict[str, object]:
    choice = {"type": "function", "name": "get_time"}
    return create_response(target, "Hi", tools=[WEATHER, TIME], tool_choice=choice)


pair("responses/tool-named", "A function that is named", _named, needs=NEEDS)


@both(
    "responses/tool-named/called",
    ("Call exactly the tool that is named", "TOOL-05"),
    ("Stream a call of exactly the tool that is named", "TOOL-05"),
)
def _only(exchange: Exchange) -> Iterator[Problem]:
    wanted, found = allowed_tools(exchange), _made(exchange)
    if not found or not set(map(repr, found)) <= set(map(repr, wanted)):
        shown = " or ".join(sorted(wanted))
        yield Problem(expected=f"a call of {shown}", actual=repr(found), pointer="output")


def _none(target: Target) -> dict[str, object]:
    return create_response(target, QUESTION, tools=[WEATHER], tool_choice="none")


pair("responses/tool-none", "Tools that may not be called", _none, needs=NEEDS)


@either("responses/tool-none/no-calls", "Call nothing where `none` is said", "TOOL-03")
def _uncalled(exchange: Exchange) -> Iterator[Problem]:
    found = items(exchange, CALL)
    if found:
        yield Problem(expected="no calls", actual=str(len(found)), pointer="output")


def _single(target: Target) -> dict[str, object]:
    return create_response(target, tools.PLACES, tools=[WEATHER, TIME], parallel_tool_calls=False)


pair("responses/tool-single", "Two functions, of which one may be called", _single, needs=NEEDS)


@either("responses/tool-single/one", "Make at most one call where parallel calls are off", "TOOL-07")
def _at_most_one(exchange: Exchange) -> Iterator[Problem]:
    found = _calls(exchange)
    if len(found) > 1:
        yield Problem(expected="one call", actual=str(len(found)), pointer="output")


def _custom(target: Target) -> dict[str, object]:
    choice = {"type": "custom", "name": "write"}
    tool = tools.flat(tools.words)
    grammar = tool["format"]["grammar"]
    tool = {**tool, "format": {"type": "grammar", **grammar}}
    return create_response(target, "Use write with 2024.", tools=[tool], tool_choice=choice)


pair("responses/tool-custom", "A custom tool whose input is one line of a grammar", _custom, needs=NEEDS)


@either("responses/tool-custom/input", "Give a custom tool input that matches its grammar", "TOOL-14")
def _year(exchange: Exchange) -> Iterator[Problem]:
    """The grammar of this scenario is four digits; that of other requests is not looked at."""
    ours = (
        requested_tools(exchange).get("write", {}).get("description")
        == tools.flat(tools.words)["description"]
    )
    for call in _calls(exchange, CUSTOM, forced=True):
        if ours and not re.fullmatch("[0-9]{4}", str(call.get("input"))):
            yield Problem(expected="four digits", actual=repr(call.get("input"))[:200], pointer="input")


@stream("responses/tool-custom/events", "Add a custom call, stream its input, end it", "RS-11")
def _custom_events(exchange: Exchange) -> Iterator[Problem]:
    yield from _ordered(events(exchange), _calls(exchange, CUSTOM, forced=True), "custom_tool_call_input")


@scenario("responses/tool-round", "A call, its output, and what stands between", needs=("responses", "tools"))
def tool_round(target: Target) -> Generator[Request, Exchange, None]:
    """The server's own items are sent back as they came; where it called nothing, a call is made up."""
    first = yield Request(path="/responses", json=_one(target))
    try:
        made = [item for item in first.json["output"] if isinstance(item["type"], str)]
        calls = [item for item in made if item["type"] == CALL and isinstance(item["call_id"], str)]
    except (LookupError, TypeError):
        made, calls = [], []
    if not calls:
        made = calls = [{"type": CALL, "call_id": "call_1", "name": "get_weather", "arguments": "{}"}]
    asked = [{"role": "user", "content": QUESTION}]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "21 degrees"} for call in calls
    ]
    between = [{"role": "user", "content": "Wait."}]
    parts = [{**output, "output": [{"type": "input_text", "text": "21 degrees"}]} for output in outputs]
    for given in ([*asked, *made, *outputs], [*asked, *made, *between, *outputs], [*asked, *made, *parts]):
        yield Request(path="/responses", json={**_one(target), "input": given})


whole_shapes("responses/tool-round", "Response", 0, 1, 2, 3)


@check(
    "responses/tool-round/answered",
    "Take the server's own items back, with the output of the call",
    "TOOL-10",
)
def round_answered(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, 1)


@check("responses/tool-round/apart", "Pair outputs with calls by call_id, whatever stands between", "TOOL-11")
def round_apart(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, 2)


@check("responses/tool-round/parts", "Take the output of a call as content parts", "TOOL-10")
def round_parts(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, 3)
