"""Check tools on chat completions that the request forces, forbids or restricts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import called, choice, finished, parsed
from plumbline_conformance.checks.chat.shared_laws import pair
from plumbline_conformance.checks.chat.tools import chat_with_tools, fragments, no_markup, numbered, reasons
from plumbline_conformance.checks.laws import both, stream, whole
from plumbline_conformance.checks.request_reader import allowed_tools, request_fields, requested_tools
from plumbline_conformance.suite.scenario import Inconclusive, NotRequested, Problem, Target
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange

NEEDS = ("tools",)


def _required(target: Target) -> dict[str, object]:
    return chat_with_tools(target, "Hi", tools.weather, tools.time, tool_choice="required")


pair("chat/tool-required", "A call that is required", _required, needs=NEEDS)
both(
    "chat/tool-required/no-markup",
    ("Keep the markup of required calls out of the content", "TOOL-18"),
    ("Keep the markup of required calls out of the streamed content", "TOOL-18"),
)(no_markup)


@both(
    "chat/tool-required/called",
    ("Call at least one tool if `tool_choice` is `required`", "TOOL-04"),
    ("Stream at least one call if `tool_choice` is `required`", "TOOL-04"),
)
def _any_call(exchange: Exchange) -> Iterator[Problem]:
    found = finished(choice(exchange))
    if not found.calls:
        yield Problem(expected="a call", actual=as_json(found.content)[:200], pointer="tool_calls")


@both(
    "chat/tool-required/finish",
    ("Finish a required call with `tool_calls`", "CHAT-05"),
    ("Finish a streamed required call with `tool_calls`", "CS-13"),
)
def _forced_finish(exchange: Exchange) -> Iterator[Problem]:
    called(exchange, forced=True)
    yield from reasons(exchange)


@whole("chat/tool-required/arguments", "Give a required call arguments that fit the tool's schema", "TOOL-01")
def _arguments_fit(exchange: Exchange) -> Iterator[Problem]:
    """Check that arguments of the scenario's tools are objects of strings, and other arguments objects (TOOL-01)."""
    offered = requested_tools(exchange)
    for call in called(exchange, forced=True):
        value = parsed(call.arguments)
        if call.custom:
            continue
        plain = offered.get(call.name, {}).get("parameters") in PLAIN
        if not isinstance(value, dict) or (plain and not all(isinstance(one, str) for one in value.values())):
            yield Problem(
                expected="an object of strings", actual=as_json(call.arguments)[:200], pointer="tool_calls[0]"
            )


PLAIN = (tools.schema("city"), tools.schema("zone"))


def _named(target: Target) -> dict[str, object]:
    named = {"type": "function", "function": {"name": "get_time"}}
    return chat_with_tools(target, "Hi", tools.weather, tools.time, tool_choice=named)


pair("chat/tool-named", "A tool that is named", _named, needs=NEEDS)


@both(
    "chat/tool-named/called",
    ("Call exactly the tool that is named", "TOOL-05"),
    ("Stream a call of exactly the tool that is named", "TOOL-05"),
)
def _only_allowed(exchange: Exchange) -> Iterator[Problem]:
    wanted = allowed_tools(exchange)
    found = [call.name for call in finished(choice(exchange)).calls]
    if not found or not set(found) <= wanted:
        shown = " or ".join(sorted(wanted))
        yield Problem(
            expected=f"calls of {shown}", actual=as_json(found), pointer="tool_calls[].function.name"
        )


whole("chat/tool-named/finish", "Finish with `tool_calls`, or `stop` as OpenAI's service does", "CHAT-05")(
    _forced_finish
)
both(
    "chat/tool-named/arguments",
    ("Give the named call arguments that fit its schema", "TOOL-01"),
    ("Stream arguments that fit the named tool's schema", "CS-12"),
)(_arguments_fit)


stream("chat/tool-named/index", "Number the calls, not the tools of the request", "CS-11")(numbered)


def _allowed(target: Target) -> dict[str, object]:
    subset = [{"type": "function", "function": {"name": "get_time"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": subset}}
    return chat_with_tools(target, tools.PLACES, tools.weather, tools.time, tool_choice=choice)


pair("chat/tool-allowed", "A subset of the tools, of which one is required", _allowed, needs=NEEDS)


@both(
    "chat/tool-allowed/called",
    ("Call no tool outside the allowed ones", "TOOL-06"),
    ("Stream no call outside the allowed tools", "TOOL-06"),
)
def _no_other_tool(exchange: Exchange) -> Iterator[Problem]:
    wanted = request_fields(exchange).get("tool_choice")
    inner = wanted.get("allowed_tools") if isinstance(wanted, dict) else None
    mode = (inner if isinstance(inner, dict) else wanted or {}).get("mode")
    if mode != "required" and not finished(choice(exchange)).calls:
        raise Inconclusive("the model called no tool")
    yield from _only_allowed(exchange)


def _none(target: Target) -> dict[str, object]:
    return chat_with_tools(target, "Use get_weather with city Paris.", tools.weather, tool_choice="none")


pair("chat/tool-none", "Tools that may not be called", _none, needs=NEEDS)


@both(
    "chat/tool-none/no-calls",
    ("Call no tool if `tool_choice` is `none`", "TOOL-03"),
    ("Stream no call if `tool_choice` is `none`", "TOOL-03"),
)
def _no_calls(exchange: Exchange) -> Iterator[Problem]:
    found = choice(exchange)
    if found.calls or found.finish_reason in ("tool_calls", "function_call"):
        shown = f"{len(found.calls)}, {found.finish_reason}"
        yield Problem(expected="no calls", actual=shown, pointer="choices[0]")


def _single(target: Target) -> dict[str, object]:
    return chat_with_tools(target, tools.PLACES, tools.weather, tools.time, parallel_tool_calls=False)


pair("chat/tool-single", "Two tools that are needed, with parallel calls off", _single, needs=NEEDS)


@both(
    "chat/tool-single/one",
    ("Make at most one call if parallel calls are off", "TOOL-07"),
    ("Stream at most one call if parallel calls are off", "TOOL-07"),
)
def _at_most_one(exchange: Exchange) -> Iterator[Problem]:
    found = called(exchange)
    if len(found) > 1:
        yield Problem(expected="one call", actual=str(len(found)), pointer="tool_calls")


def _custom(target: Target) -> dict[str, object]:
    named = {"type": "custom", "custom": {"name": "write"}}
    return chat_with_tools(target, "Use write with 2024.", tools.words, tool_choice=named)


pair("chat/tool-custom", "A custom tool whose input is one line of a grammar", _custom, needs=NEEDS)


@both(
    "chat/tool-custom/input",
    ("Give a custom tool input that matches its grammar", "TOOL-14"),
    ("Stream input that matches the grammar", "TOOL-14"),
)
def _grammar_input(exchange: Exchange) -> Iterator[Problem]:
    """Check the input of the scenario's tool (four digits); for other requests, only the type of the call."""
    ours = requested_tools(exchange).get("write") == tools.words["custom"]
    for call in called(exchange, forced=True):
        if not call.custom or (ours and not re.fullmatch("[0-9]{4}", call.arguments)):
            yield Problem(
                expected="a custom call with four digits", actual=as_json(call)[:200], pointer="input"
            )


@stream("chat/tool-custom/id-once", "Stream a custom call's id, type and name once", "CS-18")
def _custom_once(exchange: Exchange) -> Iterator[Problem]:
    called(exchange, forced=True)
    mine = [(where, piece) for where, piece in fragments(exchange) if "choices[0]" in where]
    heads = [piece for _, piece in mine if piece.get("id")]
    names = [piece["custom"].get("name") for piece in heads if isinstance(piece.get("custom"), dict)]
    places = {as_json(piece.get("index")) for _, piece in mine}
    if (
        len(heads) != len(places)
        or len(names) != len(heads)
        or not set(names) <= set(requested_tools(exchange))
    ):
        yield Problem(expected="one head for each call", actual=as_json(heads)[:200], pointer="tool_calls")


@whole("chat/tool-custom/type", "Set the type of a custom call to `custom`", "TOOL-14")
def _custom_type(exchange: Exchange) -> Iterator[Problem]:
    called(exchange, forced=True)
    for number, call in enumerate(exchange.json["choices"][0]["message"]["tool_calls"]):
        if call.get("type") != "custom":
            where = f"tool_calls[{number}].type"
            yield Problem(expected="custom", actual=as_json(call.get("type")), pointer=where)


def _required_reasoning(target: Target) -> dict[str, object]:
    return chat_with_tools(
        target, "Hi", tools.weather, tool_choice="required", reasoning_effort="low", max_tokens=256
    )


pair(
    "chat/tool-required-reasoning",
    "A required call of a model that reasons",
    _required_reasoning,
    needs=("tools", "reasoning"),
)


both(
    "chat/tool-required-reasoning/called",
    ("Call a tool even if the model reasons first", "TOOL-04"),
    ("Stream a call even if the model reasons first", "TOOL-04"),
)(_any_call)


def _long_call(target: Target) -> dict[str, object]:
    return {**chat_with_tools(target, tools.FLIP, **tools.flipping()), "max_tokens": 24}


pair("chat/call-cut", "A call that the token limit cuts", _long_call, needs=NEEDS)


@both(
    "chat/call-cut/length",
    ("Finish with `length` if the limit cut a call", "CHAT-05"),
    ("Finish with `length` if the limit cut a streamed call", "CHAT-05"),
)
def _cut(exchange: Exchange) -> Iterator[Problem]:
    """Check only the scenario's tool: its list of thirty cannot fit into the limit.

    The arguments of other tools may be invalid without being cut.
    """
    if request_fields(exchange).get("tools") != tools.flipping()["tools"]:
        raise NotRequested("the call may fit into the limit")
    found = choice(exchange)
    if not found.calls:
        raise Inconclusive("the model started no call")
    begun = found.calls[-1]
    if begun.custom or parsed(begun.arguments) is not None:
        raise NotRequested("the call is complete")
    if found.finish_reason != "length":
        yield Problem(
            expected="length", actual=as_json(found.finish_reason), pointer="choices[0].finish_reason"
        )
