"""Check calls and thinking of Messages, and what a client sends back of them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import THINKING_MARKS
from plumbline_conformance.checks.common import accepted, at, follow_up_accepted, refused
from plumbline_conformance.checks.laws import STREAM, WHOLE, both, whole
from plumbline_conformance.checks.messages.fold import blocks_of, message_of
from plumbline_conformance.checks.messages.texts import PATH, message, streamed_prompt
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.checks.tools import PLACES, schema
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
Json = dict[str, Any]
TOOLS = [
    {"name": "get_weather", "description": "The weather of a city.", "input_schema": schema("city")},
    {"name": "get_time", "description": "The time of a zone.", "input_schema": schema("zone")},
]
CUT = ("max_tokens", "model_context_window_exceeded", "refusal")
"""Why an answer ended that may have half of a call."""
THINKING = {"type": "enabled", "budget_tokens": 1024}


@scenario("messages/tool", "Forced calls, and the result of one", needs=("messages",))
def tool(target: Target) -> Steps:
    body = message(target, messages=user(PLACES), tools=TOOLS, max_tokens=128)
    forced = {**body, "tool_choice": {"type": "tool", "name": "get_weather"}}
    first = yield Request(name=WHOLE, path=PATH, json=forced)
    yield Request(name=STREAM, path=PATH, json={**forced, "stream": True})
    one = {"type": "any", "disable_parallel_tool_use": True}
    yield Request(name="single", path=PATH, json={**body, "tool_choice": one})
    yield Request(name="none", path=PATH, json={**body, "tool_choice": {"type": "none"}})
    if (content := _calls(first)) is not None:
        results = [
            {"type": "tool_result", "tool_use_id": block.get("id"), "content": "21 °C"}
            for block in content
            if block.get("type") == "tool_use"
        ]
        turns = [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
        yield Request(name="result", path=PATH, json={**body, "messages": [*user(PLACES), *turns]})


def _calls(exchange: Exchange) -> list[Json] | None:
    """Return the content of an answer with calls."""
    try:
        found = blocks_of(exchange, "tool_use")
    except Inconclusive:
        return None
    return objects_in(message_of(exchange).get("content")) if found else None


@both(
    "messages/tool/called",
    ("Call the tool that is forced", "MSG-04"),
    ("Stream the call that is forced", "MSG-04"),
)
def choice_kept(exchange: Exchange) -> Iterator[Problem]:
    """Check the calls of an answer by the tools and the `tool_choice` of the request (MSG-04)."""
    asked = request_fields(exchange)
    tools = {str(one.get("name")): one for one in objects_in(asked.get("tools"))}
    if not tools:
        raise NotRequested("the request has no tools")
    given = asked.get("tool_choice")
    choice: Json = given if isinstance(given, dict) else {}
    kind = choice.get("type")
    calls = blocks_of(exchange, "tool_use")
    allowed = {"tool": [choice.get("name")], "none": []}.get(str(kind), list(tools))
    reason = message_of(exchange).get("stop_reason")
    cut = reason in CUT
    if not calls and kind in ("any", "tool") and not cut:
        yield Problem(expected="a call", actual="none", pointer="content")
    if len(calls) > 1 and choice.get("disable_parallel_tool_use") is True:
        yield Problem(expected="one call at most", actual=str(len(calls)), pointer="content")
    for call in calls:
        name = str(call.get("name"))
        if name not in allowed:
            wanted = f"a call of {', '.join(map(str, allowed)) or 'nothing'}"
            yield Problem(expected=wanted, actual=as_json(name)[:200], pointer="content")


@both(
    "messages/tool/arguments",
    ("Give the call that is forced the input that its schema describes", "MSG-04"),
    ("Stream the input that the schema of the forced tool describes", "MSG-04"),
    milder=True,
)
def input_fits(exchange: Exchange) -> Iterator[Problem]:
    """Check the input of the call that is forced: a SHOULD, because only strict tools guarantee it."""
    asked = request_fields(exchange)
    choice = asked.get("tool_choice")
    forced = choice.get("name") if isinstance(choice, dict) else None
    tool = next((one for one in objects_in(asked.get("tools")) if one.get("name") == forced), None)
    if forced is None or tool is None:
        raise NotRequested("the request forces no call of one of its tools")
    if message_of(exchange).get("stop_reason") in CUT:
        raise Inconclusive("the token limit cut the answer")
    calls = [call for call in blocks_of(exchange, "tool_use") if call.get("name") == forced]
    if not calls:
        raise Inconclusive("the forced tool is not called; another check reports this")
    for call in calls:
        if not _fits(tool, call.get("input")):
            shown = as_json(call.get("input"))[:200]
            yield Problem(expected="input that fits the tool's schema", actual=shown, pointer="content")


@both(
    "messages/tool/filled",
    ("Leave out texts without words beside calls", "MSG-08"),
    ("Stream no text without words beside calls", "MSG-08"),
    milder=True,
)
def no_empty_texts(exchange: Exchange) -> Iterator[Problem]:
    """Check that a client may send the blocks back: Anthropic's API refuses empty texts (MSG-08)."""
    found = objects_in(message_of(exchange).get("content"))
    if len(found) > 1 and any(block.get("type") == "text" and block.get("text") == "" for block in found):
        kinds = ", ".join(str(block.get("type")) for block in found)
        yield Problem(expected="no empty text", actual=kinds[:200], pointer="content")


def _fits(tool: Json, value: Any) -> bool:
    wanted = tool.get("input_schema")
    return not isinstance(wanted, dict) or "$ref" in str(wanted) or fits(wanted, value)


whole("messages/tool/single", "Make one call only, if the request says so", "MSG-04", request="single")(
    choice_kept
)
whole("messages/tool/none", "Make no call if the request forbids it", "MSG-04", request="none")(choice_kept)


check("messages/tool/same-prompt", "Count the same prompt in a stream with tools", "MSG-10")(streamed_prompt)


@check("messages/tool/taken", "Accept the result of a call", "MSG-05")
def taken(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, WHOLE, "result")


@scenario("messages/thinking", "Thinking, and thinking that is sent back", needs=("messages",))
def thinking(target: Target) -> Steps:
    asked = user("What is 17 times 3?")
    body = message(target, messages=asked, max_tokens=1280, thinking=THINKING)
    first = yield Request(name=WHOLE, path=PATH, json=body)
    yield Request(name=STREAM, path=PATH, json={**body, "stream": True})
    omitted = {**THINKING, "display": "omitted"}
    yield Request(name="omitted", path=PATH, json={**body, "thinking": omitted})
    if content := _thoughts(first):
        forged = [{**block, "thinking": "Other."} if "thinking" in block else block for block in content]
        for name, sent in (("back", content), ("forged", forged)):
            turns = [*asked, {"role": "assistant", "content": sent}, *user("And 18 times 3?")]
            yield Request(name=name, path=PATH, json={**body, "messages": turns})


def _thoughts(exchange: Exchange) -> list[Json] | None:
    """Return the content of an answer with thinking."""
    try:
        found = blocks_of(exchange, "thinking")
    except Inconclusive:
        return None
    return objects_in(message_of(exchange).get("content")) if found else None


@both(
    "messages/thinking/signed",
    ("Sign thinking", "MSG-06"),
    ("Sign streamed thinking", "MSG-06"),
)
def signed(exchange: Exchange) -> Iterator[Problem]:
    """Check that thinking is in signed blocks, and neither in nor after the text (MSG-06)."""
    misplaced = list(_misplaced(exchange))
    yield from misplaced
    for block in [] if misplaced else _thinking_of(exchange):
        if not block.get("signature"):
            shown = as_json(block.get("signature"))
            yield Problem(expected="a signature", actual=shown, pointer="content")


def _misplaced(exchange: Exchange) -> Iterator[Problem]:
    """Find thinking in the text, or after a text that it should precede; calls may come between thoughts."""
    found = objects_in(message_of(exchange).get("content"))
    for text in (str(block.get("text")) for block in found if block.get("type") == "text"):
        if any(mark in text for mark in THINKING_MARKS):
            yield Problem(expected="thinking in blocks", actual=as_json(text)[:200], pointer="content")
    kinds = [block.get("type") for block in found]
    if kinds[-2:] == ["text", "thinking"] and message_of(exchange).get("stop_reason") not in CUT:
        yield Problem(expected="thinking before the text", actual=as_json(kinds)[:200], pointer="content")


def _thinking_of(exchange: Exchange) -> list[Json]:
    found = blocks_of(exchange, "thinking")
    if not found:
        raise Inconclusive("the answer has no thinking")
    return found


@check("messages/thinking/omitted", "Leave out thinking, but not its signature", "MSG-06", request="omitted")
def omitted(seen: Transcript) -> Iterator[Problem]:
    for block in _thinking_of(accepted(at(seen, "omitted"))):
        if block.get("thinking") != "" or not block.get("signature"):
            shown = as_json(block)[:200]
            yield Problem(expected="no text and a signature", actual=shown, pointer="content")


@check("messages/thinking/taken", "Accept thinking that is sent back unchanged", "MSG-06")
def thinking_taken(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, WHOLE, "back")


@check("messages/thinking/forged", "Refuse thinking that was changed", "MSG-06")
def forged(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, WHOLE))
    yield from refused(at(seen, "forged"), 400, 422)
