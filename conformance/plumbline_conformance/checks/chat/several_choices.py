"""Check several choices with tool calls: each choice has its own calls, indexes and finish reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import choices, deltas, is_stream
from plumbline_conformance.checks.chat.shared_laws import pair
from plumbline_conformance.checks.chat.tools import chat_with_tools, fragments
from plumbline_conformance.checks.common import accepted
from plumbline_conformance.checks.laws import both, stream
from plumbline_conformance.checks.request_reader import requested_choices
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Target
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import Choice, objects_in
from plumbline_conformance.transcript.exchange import Exchange


def _two_choices(target: Target) -> dict[str, object]:
    return chat_with_tools(target, "Hi", tools.weather, tool_choice="required", n=2)


pair("chat/tool-choices", "Two choices with a required call each", _two_choices, needs=("tools",))


def _cut_by_nothing(exchange: Exchange) -> list[Choice]:
    found = choices(exchange)
    if any(one.finish_reason == "length" for one in found):
        raise Inconclusive("the token limit cut a choice")
    return found


@both(
    "chat/tool-choices/called",
    ("Make the required call in every choice", "TOOL-04", "CHAT-02"),
    ("Stream the required call in every choice", "TOOL-04", "CHAT-02"),
)
def _called(exchange: Exchange) -> Iterator[Problem]:
    found = _cut_by_nothing(exchange)
    if len(found) != requested_choices(exchange):
        shown = str(len(found))
        yield Problem(
            expected=f"{requested_choices(exchange)} choices", actual=shown, pointer="choices", rule="CHAT-02"
        )
    for place, one in enumerate(found):
        if not one.calls:
            where = f"choices[{place}].tool_calls"
            yield Problem(expected="a call", actual="none", pointer=where, rule="TOOL-04")


@both(
    "chat/tool-choices/finish",
    ("Finish every choice with its own reason", "CHAT-05"),
    ("Finish every streamed choice with its own reason", "CS-13"),
)
def _finish(exchange: Exchange) -> Iterator[Problem]:
    for place, one in enumerate(_cut_by_nothing(exchange)):
        wanted = ("tool_calls", "stop") if one.calls else ("stop", "content_filter")
        if one.finish_reason not in wanted:
            where = f"choices[{place}].finish_reason"
            yield Problem(expected=" or ".join(wanted), actual=as_json(one.finish_reason), pointer=where)


@both(
    "chat/tool-choices/ids",
    ("Give every call of every choice a unique id", "TOOL-09"),
    ("Give every streamed call of every choice a unique id", "TOOL-09"),
)
def _ids(exchange: Exchange) -> Iterator[Problem]:
    found = _ids_of(exchange)
    if len(found) < 2:
        raise Inconclusive("there are no two calls; other checks report this")
    if len(set(map(repr, found))) != len(found):
        yield Problem(expected="ids that differ", actual=as_json(found)[:200], pointer="tool_calls[].id")


def _ids_of(exchange: Exchange) -> list[Any]:
    if is_stream(exchange):
        return [piece["id"] for _, piece in fragments(exchange) if piece.get("id")]
    body = accepted(exchange).json
    messages = [one.get("message") for one in objects_in(body.get("choices"))]
    calls = [message.get("tool_calls") for message in messages if isinstance(message, dict)]
    return [call.get("id") for found in calls for call in objects_in(found)]


@stream("chat/tool-choices/index", "Number the calls of each choice from 0", "CS-11")
def _index(exchange: Exchange) -> Iterator[Problem]:
    orders: dict[str, list[Any]] = {}
    for _, one, delta in deltas(exchange):
        for piece in objects_in(delta.get("tool_calls")):
            orders.setdefault(as_json(one.get("index")), []).append(piece.get("index"))
    for place, found in orders.items():
        order = list(dict.fromkeys(map(repr, found)))
        if order != [str(number) for number in range(len(order))]:
            where = f"choices[{place}].delta.tool_calls[].index"
            yield Problem(expected="0, 1, 2, …", actual=", ".join(order), pointer=where)
