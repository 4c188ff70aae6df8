"""Check responses that continue a conversation, or refer to single items of an earlier response."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import (
    accepted,
    answered,
    at,
    follow_up_accepted,
    longer_prompt,
    refused,
)
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.responses.stored.lifecycle import id_of
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    Untestable,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
BRIEF: dict[str, Any] = {"max_output_tokens": 16, "store": True}
UNKNOWN_ID = "conv_0f3a0f3a0f3a0f3a"
RESPONSES = ("by_id", "by_object")
"""The two responses of the conversation, which name it in two ways."""


@scenario("responses/conversation", "A conversation of two responses", needs=("responses", "conversations"))
def conversation(target: Target) -> Steps:
    begun = yield Request(name="created", path="/conversations", json={})
    if (name := id_of(begun)) is None:
        return
    asked = create_response(target, "Hi", conversation=name, **BRIEF)
    yield Request(name="by_id", path="/responses", json=asked)
    yield Request(name="by_object", path="/responses", json={**asked, "conversation": {"id": name}})
    yield Request(name="items", path=f"/conversations/{name}/items?limit=100", method="GET")
    yield Request(name="unknown", path="/responses", json={**asked, "conversation": UNKNOWN_ID})
    yield Request(name="delete", path=f"/conversations/{name}", method="DELETE")


@check("responses/conversation/echo", "Return the conversation in its responses", "ST-09")
def conversation_echo(seen: Transcript) -> Iterator[Problem]:
    name = id_of(accepted(at(seen, "created")))
    for response in RESPONSES:
        found = answered(at(seen, response)).json
        echoed = found.get("conversation") if isinstance(found, dict) else None
        if not isinstance(echoed, dict) or echoed.get("id") != name:
            wanted = f"an object with the id {name}"
            shown = as_json(echoed)[:200]
            yield Problem(expected=wanted, actual=shown, pointer="conversation", exchange=response)


@check("responses/conversation/prepended", "Show the items of the conversation to the model", "ST-09")
def conversation_prepended(seen: Transcript) -> Iterator[Problem]:
    """Ask the same question twice: the second prompt also has the first question and its answer."""
    yield from longer_prompt(seen, *RESPONSES)


@check(
    "responses/conversation/appended",
    "Add questions and answers to the conversation",
    "ST-09",
    request="items",
)
def conversation_appended(seen: Transcript) -> Iterator[Problem]:
    made = [messages_in(accepted(at(seen, name)).json, "output") for name in RESPONSES]
    wanted = {"user": 2, "assistant": sum(map(len, made))}
    listed = messages_in(answered(at(seen, "items")).json, "data")
    found = {role: sum(item.get("role") == role for item in listed) for role in wanted}
    if found != wanted:
        yield Problem(expected=as_json(wanted), actual=as_json(found), pointer="data[].role")


@check(
    "responses/conversation/texts",
    "Keep the questions and answers of a conversation in their order",
    "ST-09",
    request="items",
)
def conversation_texts(seen: Transcript) -> Iterator[Problem]:
    """Compare roles and texts; the list may begin with the newest or the oldest item."""
    wanted = []
    for name in RESPONSES:
        wanted.append(("user", "Hi"))
        wanted += [spoken(item) for item in messages_in(accepted(at(seen, name)).json, "output")]
    found = [spoken(item) for item in messages_in(answered(at(seen, "items")).json, "data")]
    if sorted(role for role, _ in found) != sorted(role for role, _ in wanted):
        raise Inconclusive("other items are listed; another check reports this")
    if found not in (wanted, wanted[::-1]):
        yield Problem(expected=as_json(wanted)[:200], actual=as_json(found)[:200], pointer="data")


def spoken(item: dict[str, Any]) -> tuple[str, str]:
    """Return the role and the text of a message."""
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    text = "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return str(item.get("role")), content if isinstance(content, str) else text


def messages_in(answer: Any, key: str) -> list[dict[str, Any]]:
    """Return the messages in a list of an answer."""
    value = answer.get(key) if isinstance(answer, dict) else None
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return [item for item in items if item.get("type") == "message"]


@check("responses/conversation/unknown", "Answer an unknown conversation with 404", "ST-09")
def conversation_unknown(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "created"))
    yield from refused(at(seen, "unknown"), 404)


@scenario(
    "responses/item-reference",
    "A question with and without a reference to an earlier item",
    needs=("responses", "stored"),
)
def item_reference(target: Target) -> Steps:
    """Ask the same question without and with a reference to a message of an earlier response."""
    made = yield Request(name="created", path="/responses", json=create_response(target, "Hi", **BRIEF))
    alone = create_response(target, [*user("Hi"), *user("And?")], **BRIEF)
    yield Request(name="without_reference", path="/responses", json=alone)
    name = _first_item(made)
    if name is not None:
        items = [*user("Hi"), {"type": "item_reference", "id": name}, *user("And?")]
        body = create_response(target, items, **BRIEF)
        yield Request(name="with_reference", path="/responses", json=body)


def _first_item(exchange: Exchange) -> str | None:
    found = messages_in(exchange.json, "output")
    name = found[0].get("id") if found else None
    return name if isinstance(name, str) else None


@check("responses/item-reference/resolved", "Replace a reference by the stored item", "ST-13")
def item_reference_resolved(seen: Transcript) -> Iterator[Problem]:
    """Detect a server that accepts a reference but does not show the item to the model. Refusing it is allowed."""
    if _first_item(accepted(at(seen, "created"))) is None:
        raise Inconclusive("the response has no message to refer to")
    found = answered(at(seen, "with_reference"))
    if found.status in (400, 404, 422):
        raise Rejected(f"the server refuses item references: status {found.status}")
    yield from longer_prompt(seen, "without_reference", "with_reference")


@scenario(
    "responses/stored-call",
    "A stored call, and its output without the call",
    needs=("responses", "stored", "tools"),
)
def stored_call(target: Target) -> Steps:
    forced: dict[str, Any] = {"type": "function", "name": "get_weather"}
    offered: dict[str, Any] = {"tools": [tools.flat(tools.weather)], "max_output_tokens": 128, "store": True}
    body = create_response(target, "Hi", tool_choice=forced, **offered)
    made = yield Request(name="call", path="/responses", json=body)
    name, call = id_of(made), _called(made)
    if name is not None and call is not None:
        output = [{"type": "function_call_output", "call_id": call, "output": "21 degrees"}]
        body = create_response(target, output, previous_response_id=name, **offered)
        yield Request(name="output", path="/responses", json=body)


def _called(exchange: Exchange) -> str | None:
    output = exchange.json.get("output") if isinstance(exchange.json, dict) else None
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    names = [item.get("call_id") for item in items if item.get("type") == "function_call"]
    return names[0] if names and isinstance(names[0], str) else None


@check("responses/stored-call/answered", "Accept the output of a call of a stored response", "ST-04")
def stored_call_answered(seen: Transcript) -> Iterator[Problem]:
    """Detect a server that stores messages but not calls, so that it finds no call for the output."""
    made = accepted(at(seen, "call"))
    if isinstance(made.json, dict) and made.json.get("status") == "incomplete":
        raise Inconclusive("the token limit cut the call")
    if _called(made) is None:
        raise Untestable("the request forces a call, but the server made none")
    yield from follow_up_accepted(seen, "call", "output")
