"""Check tools on the Responses API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import parsed
from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.checks.laws import STREAM, WHOLE, both, either, stream, whole
from plumbline_conformance.checks.request_reader import allowed_tools, request_fields, requested_tools
from plumbline_conformance.checks.responses.shared_laws import create_response, events, items, pair, response
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Target,
    Untestable,
    check,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["CALL", "CUSTOM", "NEEDS", "QUESTION", "calls_of", "events_in_order", "one_function"]

QUESTION = "Use get_weather with city Paris."
WEATHER = tools.flat(tools.weather)
TIME = tools.flat(tools.time)
NEEDS = ("tools",)
CALL = "function_call"
CUSTOM = "custom_tool_call"


def calls_of(exchange: Exchange, kind: str = CALL, *, forced: bool = False) -> list[dict[str, Any]]:
    """Return the calls of a complete answer.

    Raises:
        Inconclusive: the answer was cut, or the model called nothing.
        Untestable: nothing was called although the request forces a call.
    """
    if response(exchange).get("status") == "incomplete":
        raise Inconclusive("the token limit cut the answer")
    found = items(exchange, kind)
    if not found:
        if forced:
            raise Untestable("the request forces a call, but the server made none")
        raise Inconclusive("the model called no tool")
    return found


def one_function(target: Target) -> dict[str, object]:
    """Return a request with one function that may be called."""
    return create_response(target, QUESTION, tools=[WEATHER])


pair("responses/tool", "A function that may be called", one_function, needs=NEEDS)


@both(
    "responses/tool/arguments",
    ("Write arguments as a string that is one JSON object", "TOOL-01"),
    ("Stream fragments that join to one JSON object", "TOOL-01"),
)
def _objects(exchange: Exchange) -> Iterator[Problem]:
    for call in calls_of(exchange):
        arguments = call.get("arguments")
        if not isinstance(arguments, str) or not isinstance(parsed(arguments), dict):
            yield Problem(
                expected="one JSON object", actual=as_json(arguments)[:200], pointer="item.arguments"
            )


@both(
    "responses/tool/known-name",
    ("Call only tools of the request", "TOOL-02"),
    ("Stream calls only of tools of the request", "TOOL-02"),
)
def _known(exchange: Exchange) -> Iterator[Problem]:
    names = set(requested_tools(exchange))
    found = [call.get("name") for call in calls_of(exchange)]
    if any(one not in names for one in found):
        shown = " or ".join(sorted(names))
        yield Problem(expected=f"calls of {shown}", actual=as_json(found), pointer="item.name")


@either(
    "responses/tool/call-id", "Give a call an id of 1 to 64 characters, different from the item's", "TOOL-09"
)
def _call_id(exchange: Exchange) -> Iterator[Problem]:
    calls = calls_of(exchange)
    for call in calls:
        name = call.get("call_id")
        if not isinstance(name, str) or not 1 <= len(name) <= 64 or name == call.get("id"):
            shown = as_json((name, call.get("id")))[:200]
            yield Problem(expected="a separate call_id", actual=shown, pointer="item.call_id")
    if len({as_json(call.get("call_id")) for call in calls}) != len(calls):
        yield Problem(expected="ids that differ", actual="the same", pointer="item.call_id")


@either("responses/tool/no-markup", "Keep the markup of calls out of the text", "TOOL-18")
def _no_markup(exchange: Exchange) -> Iterator[Problem]:
    parts = [part for item in items(exchange, "message") for part in item.get("content") or []]
    text = "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
    for left in tools.left_in_text(text, requested_tools(exchange)):
        yield Problem(expected="a call", actual=as_json(left)[:200], pointer="output_text")
        return
    calls_of(exchange)
    for mark in tools.MARKUP:
        if mark in text:
            yield Problem(expected=f"no {mark}", actual=as_json(text)[:200], pointer="output_text")


@check("responses/tool/new-ids", "Give items and calls of each response new ids", "R-08", milder=True)
def new_ids(seen: Transcript) -> Iterator[Problem]:
    """Check that ids do not repeat across responses: a client that keeps a conversation mixes such calls up."""
    found: list[dict[str, set[str]]] = []
    for name in (WHOLE, STREAM):
        calls = calls_of(accepted(at(seen, name)))
        found.append({key: {str(call.get(key)) for call in calls} for key in ("id", "call_id")})
    for key in ("id", "call_id"):
        if again := found[0][key] & found[1][key]:
            wanted, where = "ids that no earlier response has", f"output[].{key}"
            yield Problem(expected=wanted, actual=", ".join(sorted(again)), pointer=where, exchange=STREAM)


@stream("responses/tool/call-events", "Send the events of a call in order", "RS-10")
def _call_events(exchange: Exchange) -> Iterator[Problem]:
    yield from events_in_order(events(exchange), calls_of(exchange), "function_call_arguments")


def events_in_order(found: list[dict[str, Any]], calls: list[dict[str, Any]], stem: str) -> Iterator[Problem]:
    """Check that the events of each call come in their order; `stem` begins the names of its delta and done."""
    """Check the order of a call's events, which have no content parts."""
    wanted = ["output_item.added", f"{stem}.delta", f"{stem}.done", "output_item.done"]
    for call in calls:
        of_call = [
            event for event in found if call.get("id") in (event.get("item_id"), _item(event).get("id"))
        ]
        kinds = [str(event.get("type")).removeprefix("response.") for event in of_call]
        order = list(dict.fromkeys(kinds))
        if [kind for kind in wanted if kind in order or not kind.endswith(".delta")] != order:
            yield Problem(expected=", ".join(wanted), actual=", ".join(order), pointer=str(call.get("id")))


def _item(event: dict[str, Any]) -> dict[str, Any]:
    item = event.get("item")
    return item if isinstance(item, dict) else {}


@stream("responses/tool/added-empty", "Add a call with name and call_id, but without arguments", "RS-05")
def _added(exchange: Exchange) -> Iterator[Problem]:
    calls_of(exchange)
    heads: dict[Any, dict[str, Any]] = {}
    for number, event in enumerate(events(exchange)):
        item = _item(event)
        where = f"event {number}, item"
        if item.get("type") == CALL and event.get("type") == "response.output_item.added":
            heads[item.get("id")] = item
            if item.get("arguments") != "" or not item.get("name") or not item.get("call_id"):
                yield Problem(
                    expected="a name, a call_id, no arguments", actual=as_json(item)[:200], pointer=where
                )
        elif item.get("type") == CALL:
            head = heads.get(item.get("id"), {})
            if any(item.get(key) != head.get(key) for key in ("name", "call_id")):
                yield Problem(expected=as_json(head)[:200], actual=as_json(item)[:200], pointer=where)


@stream("responses/tool/done-arguments", "Send the complete arguments in the done event", "RS-10")
def _done(exchange: Exchange) -> Iterator[Problem]:
    wanted = [call.get("arguments") for call in calls_of(exchange)]
    ends = [e for e in events(exchange) if e.get("type") == "response.function_call_arguments.done"]
    names = {call.get("id"): call.get("name") for call in calls_of(exchange)}
    for event in ends:
        name = names.get(event.get("item_id"))
        if name is not None and event.get("name", name) != name:
            yield Problem(expected=as_json(name), actual=as_json(event["name"])[:200], pointer="name")
    if [event.get("arguments") for event in ends] != wanted:
        shown = as_json([event.get("arguments") for event in ends])[:200]
        yield Problem(expected=as_json(wanted)[:200], actual=shown, pointer="arguments")


@whole("responses/tool/completed", "Set the status of a response with calls to `completed`", "R-02", "R-07")
def _completed(exchange: Exchange) -> Iterator[Problem]:
    calls = calls_of(exchange)
    states = [response(exchange).get("status"), *(call.get("status") for call in calls)]
    if any(state not in ("completed", None) for state in states) or states[0] is None:
        # the status of the response. R-07: the status of an item.
        rule = "R-02" if states[0] != "completed" else "R-07"
        yield Problem(expected="completed", actual=as_json(states), pointer="status", rule=rule)


@whole("responses/tool/ended", "Complete a response no earlier than it was created", "R-03")
def _ended(exchange: Exchange) -> Iterator[Problem]:
    """Compare the two times, with one second for rounding; another check reports missing times."""
    found = response(exchange)
    begun, ended = found.get("created_at"), found.get("completed_at")
    if not isinstance(begun, int | float) or not isinstance(ended, int | float):
        raise Inconclusive("there are no two times to compare")
    if ended < begun - 1:
        yield Problem(expected=f"{begun} or later", actual=as_json(ended), pointer="completed_at")


def _two(target: Target) -> dict[str, object]:
    return create_response(target, tools.PLACES, tools=[WEATHER, TIME])


pair("responses/tools", "Two functions that are both needed", _two, needs=NEEDS)


@both(
    "responses/tools/ids",
    ("Give every item and every call a unique id", "R-08", "TOOL-09"),
    ("Stream every item and every call with a unique id", "R-08", "TOOL-09"),
)
def _distinct_ids(exchange: Exchange) -> Iterator[Problem]:
    calls = calls_of(exchange)
    if len(calls) < 2:
        raise Inconclusive("the model made one call only")
    for key in ("id", "call_id"):
        found = [as_json(call.get(key)) for call in calls]
        if len(set(found)) != len(found):
            rule, where = "R-08" if key == "id" else "TOOL-09", f"output[].{key}"
            yield Problem(expected="ids that differ", actual=", ".join(found), pointer=where, rule=rule)


@stream("responses/tools/output-index", "Stream items with their index in the output", "RS-06")
def _places(exchange: Exchange) -> Iterator[Problem]:
    final = [item.get("id") for item in items(exchange)]
    for number, event in enumerate(events(exchange)):
        place = event.get("output_index")
        if event.get("type") != "response.output_item.done" or not isinstance(place, int):
            continue
        if not 0 <= place < len(final) or final[place] != _item(event).get("id"):
            where = f"event {number}, output_index"
            yield Problem(expected=f"the place of {_item(event).get('id')}", actual=str(place), pointer=where)


@stream("responses/tools/ended", "End items in the order of their places", "RS-07", milder=True)
def _ended_in_order(exchange: Exchange) -> Iterator[Problem]:
    """Check the order of the done events, in which many clients rebuild the output (RS-07)."""
    done = [event for event in events(exchange) if event.get("type") == "response.output_item.done"]
    places = [place for event in done if isinstance(place := event.get("output_index"), int)]
    if places != sorted(places):
        yield Problem(expected=as_json(sorted(places)), actual=as_json(places), pointer="output_index")


def _required(target: Target) -> dict[str, object]:
    return create_response(target, "Hi", tools=[WEATHER, TIME], tool_choice="required")


pair("responses/tool-required", "A call that is required", _required, needs=NEEDS)
either("responses/tool-required/no-markup", "Keep the markup of required calls out of the text", "TOOL-18")(
    _no_markup
)


@both(
    "responses/tool-required/called",
    ("Call at least one tool if `tool_choice` is `required`", "TOOL-04"),
    ("Stream at least one call if `tool_choice` is `required`", "TOOL-04"),
)
def _any_call(exchange: Exchange) -> Iterator[Problem]:
    kinds = [str(item.get("type")) for item in items(exchange)]
    called = any(kind.endswith("_call") or kind == "mcp_approval_request" for kind in kinds)
    if not _called_names(exchange) and not called:
        yield Problem(expected="a call of some tool", actual="[]", pointer="output")


@either(
    "responses/tool-required/arguments",
    "Give a required call arguments that fit the tool's schema",
    "TOOL-01",
)
def _arguments_fit(exchange: Exchange) -> Iterator[Problem]:
    """Check that arguments of the scenario's tools are objects of strings, and other arguments objects."""
    offered = requested_tools(exchange)
    for call in calls_of(exchange):
        value = parsed(str(call.get("arguments")))
        plain = offered.get(str(call.get("name")), {}).get("parameters") in PLAIN
        if not isinstance(value, dict) or (plain and not all(isinstance(one, str) for one in value.values())):
            shown = as_json(call.get("arguments"))[:200]
            yield Problem(expected="an object of strings", actual=shown, pointer="item.arguments")


PLAIN = (tools.schema("city"), tools.schema("zone"))


def _called_names(exchange: Exchange) -> list[Any]:
    """Return the names of the called tools; inconclusive if the answer was cut."""
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
def _only_allowed(exchange: Exchange) -> Iterator[Problem]:
    choice = request_fields(exchange).get("tool_choice")
    allowed = choice.get("tools") if isinstance(choice, dict) else None
    if isinstance(allowed, list) and not all(isinstance(one, dict) and "name" in one for one in allowed):
        raise NotRequested("the choice allows tools without names, which are called by items of their own")
    wanted, found = allowed_tools(exchange), _called_names(exchange)
    if not found or not set(map(repr, found)) <= set(map(repr, wanted)):
        shown = " or ".join(sorted(wanted))
        yield Problem(expected=f"a call of {shown}", actual=as_json(found), pointer="output")


def _allowed(target: Target) -> dict[str, object]:
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_time"}],
    }
    return create_response(target, tools.PLACES, tools=[WEATHER, TIME], tool_choice=choice)


pair("responses/tool-allowed", "A subset of the functions, of which one is required", _allowed, needs=NEEDS)


both(
    "responses/tool-allowed/called",
    ("Call no tool outside the allowed ones", "TOOL-06"),
    ("Stream no call outside the allowed tools", "TOOL-06"),
)(_only_allowed)


def _empty(target: Target) -> dict[str, object]:
    return create_response(target, "Use ping with nothing.", tools=[tools.flat(tools.ping)])


pair("responses/tool-empty", "A function without parameters", _empty, needs=NEEDS)


both(
    "responses/tool-empty/arguments",
    ("Write the arguments of a function without parameters as {}", "TOOL-19"),
    ("Stream the arguments of such a function as {}", "TOOL-19"),
)(_objects)


def _none(target: Target) -> dict[str, object]:
    return create_response(target, QUESTION, tools=[WEATHER], tool_choice="none")


pair("responses/tool-none", "Tools that may not be called", _none, needs=NEEDS)


@either("responses/tool-none/no-calls", "Call no tool if `tool_choice` is `none`", "TOOL-03")
def _no_calls(exchange: Exchange) -> Iterator[Problem]:
    found = items(exchange, CALL)
    if found:
        yield Problem(expected="no calls", actual=str(len(found)), pointer="output")


def _single(target: Target) -> dict[str, object]:
    return create_response(target, tools.PLACES, tools=[WEATHER, TIME], parallel_tool_calls=False)


pair("responses/tool-single", "Two functions, with parallel calls off", _single, needs=NEEDS)


@either("responses/tool-single/one", "Make at most one call if parallel calls are off", "TOOL-07")
def _at_most_one(exchange: Exchange) -> Iterator[Problem]:
    found = calls_of(exchange)
    if len(found) > 1:
        yield Problem(expected="one call", actual=str(len(found)), pointer="output")
