"""Tools on chat completions that the request forces, forbids or restricts: nothing is left to the model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from plumbline_conformance.case import Problem, Target, check
from plumbline_conformance.checks import tools
from plumbline_conformance.checks.chat_laws import pair
from plumbline_conformance.checks.chat_tools import asking, fragments, reasons
from plumbline_conformance.checks.reading import Called, called, choice, finished, parsed, stream_of, whole_of
from plumbline_conformance.transcript import Exchange, Transcript

NEEDS = ("tools",)


def _required(target: Target) -> dict[str, object]:
    return asking(target, "Hi", tools.weather, tools.time, tool_choice="required")


pair("chat/tool-required", "A call that is required", _required, needs=NEEDS)


@check("chat/tool-required/called", "Call at least one tool where `required` is said", "TOOL-04")
def required_called(seen: Transcript) -> Iterator[Problem]:
    yield from _some(whole_of(seen))


@check("chat/tool-required/stream-called", "Stream at least one call where `required` is said", "TOOL-04")
def required_stream_called(seen: Transcript) -> Iterator[Problem]:
    yield from _some(stream_of(seen))


def _some(exchange: Exchange) -> Iterator[Problem]:
    found = finished(choice(exchange))
    if not found.calls:
        yield Problem(expected="a call", actual=repr(found.content)[:200], pointer="tool_calls")


@check("chat/tool-required/finish", "End a required call with `tool_calls`", "CHAT-05")
def required_finish(seen: Transcript) -> Iterator[Problem]:
    called(whole_of(seen), forced=True)
    yield from reasons(whole_of(seen), named=True)


@check("chat/tool-required/stream-finish", "End a streamed required call with `tool_calls`", "CS-13")
def required_stream_finish(seen: Transcript) -> Iterator[Problem]:
    called(stream_of(seen), forced=True)
    yield from reasons(stream_of(seen), named=True)


@check("chat/tool-required/arguments", "Give a required call arguments that fit the tool's schema", "TOOL-01")
def required_arguments(seen: Transcript) -> Iterator[Problem]:
    for call in called(whole_of(seen), forced=True):
        yield from _fitting(call)


def _fitting(call: Called) -> Iterator[Problem]:
    """What the forced tools of these scenarios take: an object with strings alone."""
    value = parsed(call.arguments)
    if not isinstance(value, dict) or not all(isinstance(member, str) for member in value.values()):
        yield Problem(
            expected="an object of strings", actual=repr(call.arguments)[:200], pointer="tool_calls[0]"
        )


def _named(target: Target) -> dict[str, object]:
    named = {"type": "function", "function": {"name": "get_time"}}
    return asking(target, "Hi", tools.weather, tools.time, tool_choice=named)


pair("chat/tool-named", "A tool that is named", _named, needs=NEEDS)


@check("chat/tool-named/called", "Call exactly the tool that is named", "TOOL-05")
def named_called(seen: Transcript) -> Iterator[Problem]:
    yield from _only(whole_of(seen), "get_time")


@check("chat/tool-named/stream-called", "Stream a call of exactly the tool that is named", "TOOL-05")
def named_stream_called(seen: Transcript) -> Iterator[Problem]:
    yield from _only(stream_of(seen), "get_time")


def _only(exchange: Exchange, name: str) -> Iterator[Problem]:
    found = [call.name for call in finished(choice(exchange)).calls]
    if not found or set(found) != {name}:
        yield Problem(expected=f"calls of {name}", actual=repr(found), pointer="tool_calls[].function.name")


@check("chat/tool-named/finish", "End with `tool_calls`, or `stop` as the service does", "CHAT-05")
def named_finish(seen: Transcript) -> Iterator[Problem]:
    called(whole_of(seen), forced=True)
    yield from reasons(whole_of(seen), named=True)


@check("chat/tool-named/arguments", "Give the named call arguments that fit its schema", "TOOL-01")
def named_arguments(seen: Transcript) -> Iterator[Problem]:
    for call in called(whole_of(seen), forced=True):
        yield from _fitting(call)


@check("chat/tool-named/stream-arguments", "Stream arguments that fit the named tool's schema", "CS-12")
def named_stream_arguments(seen: Transcript) -> Iterator[Problem]:
    for call in called(stream_of(seen), forced=True):
        yield from _fitting(call)


def _allowed(target: Target) -> dict[str, object]:
    subset = [{"type": "function", "function": {"name": "get_time"}}]
    held = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": subset}}
    return asking(target, tools.PLACES, tools.weather, tools.time, tool_choice=held)


pair("chat/tool-allowed", "A subset of the tools, of which one is required", _allowed, needs=NEEDS)


@check("chat/tool-allowed/called", "Call no tool outside the allowed ones", "TOOL-06")
def allowed_called(seen: Transcript) -> Iterator[Problem]:
    yield from _only(whole_of(seen), "get_time")


@check("chat/tool-allowed/stream-called", "Stream no call outside the allowed tools", "TOOL-06")
def allowed_stream_called(seen: Transcript) -> Iterator[Problem]:
    yield from _only(stream_of(seen), "get_time")


def _none(target: Target) -> dict[str, object]:
    return asking(target, "Use get_weather with city Paris.", tools.weather, tool_choice="none")


pair("chat/tool-none", "Tools that may not be called", _none, needs=NEEDS)


@check("chat/tool-none/no-calls", "Call nothing where `none` is said", "TOOL-03")
def none_calls(seen: Transcript) -> Iterator[Problem]:
    yield from _uncalled(whole_of(seen))


@check("chat/tool-none/stream-no-calls", "Stream no call where `none` is said", "TOOL-03")
def none_stream_calls(seen: Transcript) -> Iterator[Problem]:
    yield from _uncalled(stream_of(seen))


def _uncalled(exchange: Exchange) -> Iterator[Problem]:
    found = choice(exchange)
    if found.calls or found.reason in ("tool_calls", "function_call"):
        shown = f"{len(found.calls)}, {found.reason}"
        yield Problem(expected="no calls", actual=shown, pointer="choices[0]")


def _single(target: Target) -> dict[str, object]:
    return asking(target, tools.PLACES, tools.weather, tools.time, parallel_tool_calls=False)


pair("chat/tool-single", "Two tools that are asked for, of which one may be called", _single, needs=NEEDS)


@check("chat/tool-single/one", "Make at most one call where parallel calls are off", "TOOL-07")
def single_one(seen: Transcript) -> Iterator[Problem]:
    yield from _at_most_one(whole_of(seen))


@check("chat/tool-single/stream-one", "Stream at most one call where parallel calls are off", "TOOL-07")
def single_stream_one(seen: Transcript) -> Iterator[Problem]:
    yield from _at_most_one(stream_of(seen))


def _at_most_one(exchange: Exchange) -> Iterator[Problem]:
    found = called(exchange)
    if len(found) > 1:
        yield Problem(expected="one call", actual=str(len(found)), pointer="tool_calls")


def _custom(target: Target) -> dict[str, object]:
    named = {"type": "custom", "custom": {"name": "write"}}
    return asking(target, "Use write with 2024.", tools.words, tool_choice=named)


pair("chat/tool-custom", "A custom tool whose input is one line of a grammar", _custom, needs=NEEDS)


@check("chat/tool-custom/input", "Give a custom tool input that matches its grammar", "TOOL-14")
def custom_input(seen: Transcript) -> Iterator[Problem]:
    yield from _year(whole_of(seen))


@check("chat/tool-custom/stream-input", "Stream input that matches the grammar", "TOOL-14")
def custom_stream_input(seen: Transcript) -> Iterator[Problem]:
    yield from _year(stream_of(seen))


def _year(exchange: Exchange) -> Iterator[Problem]:
    for call in called(exchange, forced=True):
        if not call.custom or not re.fullmatch("[0-9]{4}", call.arguments):
            yield Problem(expected="a custom call with four digits", actual=repr(call)[:200], pointer="input")


@check("chat/tool-custom/id-once", "Stream a custom call's id, type and name once", "CS-18")
def custom_once(seen: Transcript) -> Iterator[Problem]:
    called(stream_of(seen), forced=True)
    heads = [piece for _, piece in fragments(stream_of(seen)) if piece.get("id")]
    names = [piece["custom"].get("name") for piece in heads if isinstance(piece.get("custom"), dict)]
    places = {repr(piece.get("index")) for _, piece in fragments(stream_of(seen))}
    if len(heads) != len(places) or names != ["write"] * len(heads):
        yield Problem(expected="one head for each call", actual=repr(heads)[:200], pointer="tool_calls")


@check("chat/tool-custom/type", "Call a custom tool by its own type", "TOOL-14")
def custom_type(seen: Transcript) -> Iterator[Problem]:
    found = whole_of(seen)
    called(found, forced=True)
    for number, call in enumerate(found.json["choices"][0]["message"]["tool_calls"]):
        if call.get("type") != "custom":
            where = f"tool_calls[{number}].type"
            yield Problem(expected="custom", actual=repr(call.get("type")), pointer=where)


def _both(target: Target) -> dict[str, object]:
    return asking(target, "Hi", tools.weather, tool_choice="required", reasoning_effort="low", max_tokens=256)


pair(
    "chat/tool-required-reasoning",
    "A required call of a model that thinks",
    _both,
    needs=("tools", "reasoning"),
)


@check("chat/tool-required-reasoning/called", "Call although the model thinks first", "TOOL-04")
def both_called(seen: Transcript) -> Iterator[Problem]:
    yield from _some(whole_of(seen))


@check(
    "chat/tool-required-reasoning/stream-called", "Stream a call although the model thinks first", "TOOL-04"
)
def both_stream_called(seen: Transcript) -> Iterator[Problem]:
    yield from _some(stream_of(seen))
