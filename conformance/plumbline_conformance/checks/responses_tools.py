"""Tools on the Responses API."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.case import Inconclusive, Problem, Request, Target, Untestable, check, scenario
from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import taken, whole_shapes
from plumbline_conformance.checks.reading import parsed, stream_of, whole_of
from plumbline_conformance.checks.responses_laws import asking, events, items, pair, response
from plumbline_conformance.transcript import Exchange, Transcript

QUESTION = "Use get_weather with city Paris."
WEATHER = tools.flat(tools.weather)
TIME = tools.flat(tools.time)
NEEDS = ("tools",)
CALL = "function_call"


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
    return asking(target, QUESTION, tools=[WEATHER])


pair("responses/tool", "A function that may be called", _one, needs=NEEDS)


@check("responses/tool/arguments", "Write arguments as a string that is one JSON object", "TOOL-01")
def tool_arguments(seen: Transcript) -> Iterator[Problem]:
    yield from _objects(_calls(whole_of(seen)))


@check("responses/tool/stream-arguments", "Stream fragments that join to one JSON object", "RS-10", "TOOL-01")
def tool_stream_arguments(seen: Transcript) -> Iterator[Problem]:
    yield from _objects(_calls(stream_of(seen)))


def _objects(calls: list[dict[str, Any]]) -> Iterator[Problem]:
    for call in calls:
        arguments = call.get("arguments")
        if not isinstance(arguments, str) or not isinstance(parsed(arguments), dict):
            yield Problem(expected="one JSON object", actual=repr(arguments)[:200], pointer="item.arguments")


@check("responses/tool/known-name", "Call only tools of the request", "TOOL-02")
def tool_known(seen: Transcript) -> Iterator[Problem]:
    yield from _only(_calls(whole_of(seen)), "get_weather")


def _only(calls: list[dict[str, Any]], name: str) -> Iterator[Problem]:
    found = [call.get("name") for call in calls]
    if any(one != name for one in found):
        yield Problem(expected=f"calls of {name}", actual=repr(found), pointer="item.name")


@check("responses/tool/call-id", "Give a call an id of 1 to 64 characters that is not its item's", "TOOL-09")
def tool_call_id(seen: Transcript) -> Iterator[Problem]:
    for exchange in (whole_of(seen), stream_of(seen)):
        calls = _calls(exchange)
        for call in calls:
            name = call.get("call_id")
            if not isinstance(name, str) or not 1 <= len(name) <= 64 or name == call.get("id"):
                shown = repr((name, call.get("id")))[:200]
                yield Problem(expected="a call_id of its own", actual=shown, pointer="item.call_id")
        if len({repr(call.get("call_id")) for call in calls}) != len(calls):
            yield Problem(expected="ids that differ", actual="the same", pointer="item.call_id")


@check("responses/tool/call-events", "Add a call, stream its arguments, end them, end it", "RS-10")
def tool_events(seen: Transcript) -> Iterator[Problem]:
    yield from _ordered(events(stream_of(seen)), _calls(stream_of(seen)), "function_call_arguments")


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


@check("responses/tool/added-empty", "Add a call with its name and call_id, and nothing in it yet", "RS-05")
def tool_added(seen: Transcript) -> Iterator[Problem]:
    _calls(stream_of(seen))
    heads: dict[Any, dict[str, Any]] = {}
    for number, event in enumerate(events(stream_of(seen))):
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


@check("responses/tool/done-arguments", "Say the arguments as a whole when they are done", "RS-10", "RS-09")
def tool_done(seen: Transcript) -> Iterator[Problem]:
    wanted = [call.get("arguments") for call in _calls(stream_of(seen))]
    ends = [e for e in events(stream_of(seen)) if e.get("type") == "response.function_call_arguments.done"]
    if [event.get("arguments") for event in ends] != wanted:
        shown = repr([event.get("arguments") for event in ends])[:200]
        yield Problem(expected=repr(wanted)[:200], actual=shown, pointer="arguments")


@check("responses/tool/completed", "Call a response with calls completed", "R-02", "R-08")
def tool_completed(seen: Transcript) -> Iterator[Problem]:
    calls = _calls(whole_of(seen))
    states = [response(whole_of(seen)).get("status"), *(call.get("status") for call in calls)]
    if any(state not in ("completed", None) for state in states) or states[0] is None:
        yield Problem(expected="completed", actual=repr(states), pointer="status")


def _two(target: Target) -> dict[str, object]:
    return asking(target, tools.PLACES, tools=[WEATHER, TIME])


pair("responses/tools", "Two functions that are both asked for", _two, needs=NEEDS)


@check("responses/tools/ids", "Give every item and every call an id of its own", "R-08", "TOOL-09")
def tools_ids(seen: Transcript) -> Iterator[Problem]:
    calls = _calls(whole_of(seen))
    if len(calls) < 2:
        raise Inconclusive("the model made one call only")
    for key in ("id", "call_id"):
        found = [repr(call.get(key)) for call in calls]
        if len(set(found)) != len(found):
            yield Problem(expected="ids that differ", actual=", ".join(found), pointer=f"output[].{key}")


@check("responses/tools/output-index", "Stream items under the places they have in the output", "RS-06")
def tools_places(seen: Transcript) -> Iterator[Problem]:
    final = [item.get("id") for item in items(stream_of(seen))]
    for number, event in enumerate(events(stream_of(seen))):
        place = event.get("output_index")
        if event.get("type") != "response.output_item.done" or not isinstance(place, int):
            continue
        if not 0 <= place < len(final) or final[place] != _item(event).get("id"):
            where = f"event {number}, output_index"
            yield Problem(expected=f"the place of {_item(event).get('id')}", actual=str(place), pointer=where)


def _required(target: Target) -> dict[str, object]:
    return asking(target, "Hi", tools=[WEATHER, TIME], tool_choice="required")


pair("responses/tool-required", "A call that is required", _required, needs=NEEDS)


@check("responses/tool-required/called", "Call at least one tool where `required` is said", "TOOL-04")
def required_called(seen: Transcript) -> Iterator[Problem]:
    yield from _some(whole_of(seen))


@check(
    "responses/tool-required/stream-called", "Stream at least one call where `required` is said", "TOOL-04"
)
def required_stream_called(seen: Transcript) -> Iterator[Problem]:
    yield from _some(stream_of(seen))


def _some(exchange: Exchange, name: str | None = None) -> Iterator[Problem]:
    if response(exchange).get("status") == "incomplete":
        raise Inconclusive("the token limit cut the answer")
    found = [call.get("name") for call in items(exchange, CALL)]
    if not found or (name is not None and set(map(repr, found)) != {repr(name)}):
        yield Problem(expected=f"a call of {name or 'some tool'}", actual=repr(found), pointer="output")


def _named(target: Target) -> dict[str, object]:
    choice = {"type": "function", "name": "get_time"}
    return asking(target, "Hi", tools=[WEATHER, TIME], tool_choice=choice)


pair("responses/tool-named", "A function that is named", _named, needs=NEEDS)


@check("responses/tool-named/called", "Call exactly the tool that is named", "TOOL-05")
def named_called(seen: Transcript) -> Iterator[Problem]:
    yield from _some(whole_of(seen), "get_time")


@check("responses/tool-named/stream-called", "Stream a call of exactly the tool that is named", "TOOL-05")
def named_stream_called(seen: Transcript) -> Iterator[Problem]:
    yield from _some(stream_of(seen), "get_time")


def _none(target: Target) -> dict[str, object]:
    return asking(target, QUESTION, tools=[WEATHER], tool_choice="none")


pair("responses/tool-none", "Tools that may not be called", _none, needs=NEEDS)


@check("responses/tool-none/no-calls", "Call nothing where `none` is said", "TOOL-03")
def none_calls(seen: Transcript) -> Iterator[Problem]:
    for exchange in (whole_of(seen), stream_of(seen)):
        found = items(exchange, CALL)
        if found:
            yield Problem(expected="no calls", actual=str(len(found)), pointer="output")


def _single(target: Target) -> dict[str, object]:
    return asking(target, tools.PLACES, tools=[WEATHER, TIME], parallel_tool_calls=False)


pair("responses/tool-single", "Two functions, of which one may be called", _single, needs=NEEDS)


@check("responses/tool-single/one", "Make at most one call where parallel calls are off", "TOOL-07")
def single_one(seen: Transcript) -> Iterator[Problem]:
    for exchange in (whole_of(seen), stream_of(seen)):
        found = _calls(exchange)
        if len(found) > 1:
            yield Problem(expected="one call", actual=str(len(found)), pointer="output")


def _custom(target: Target) -> dict[str, object]:
    choice = {"type": "custom", "name": "write"}
    tool = tools.flat(tools.words)
    grammar = tool["format"]["grammar"]
    tool = {**tool, "format": {"type": "grammar", **grammar}}
    return asking(target, "Use write with 2024.", tools=[tool], tool_choice=choice)


pair("responses/tool-custom", "A custom tool whose input is one line of a grammar", _custom, needs=NEEDS)
CUSTOM = "custom_tool_call"


@check("responses/tool-custom/input", "Give a custom tool input that matches its grammar", "TOOL-14")
def custom_input(seen: Transcript) -> Iterator[Problem]:
    for exchange in (whole_of(seen), stream_of(seen)):
        for call in _calls(exchange, CUSTOM, forced=True):
            if not re.fullmatch("[0-9]{4}", str(call.get("input"))):
                yield Problem(expected="four digits", actual=repr(call.get("input"))[:200], pointer="input")


@check("responses/tool-custom/events", "Add a custom call, stream its input, end it", "RS-11")
def custom_events(seen: Transcript) -> Iterator[Problem]:
    calls = _calls(stream_of(seen), CUSTOM, forced=True)
    yield from _ordered(events(stream_of(seen)), calls, "custom_tool_call_input")


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


whole_shapes("responses/tool-round", "Response", "R-01", 0, 1, 2, 3)


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
