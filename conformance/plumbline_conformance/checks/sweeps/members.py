"""Check the rare members of requests: each variant of a turn or a field that the contract has, by its schemas.

A turn is sent with each of its optional members. Members that are notes about a turn, such as its id and its state,
change nothing that the model sees. `conformance/own_server/asked.py --empty` lists what is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import msgspec

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import accepted, answered, at, usage_count
from plumbline_conformance.checks.messages.fold import prompt_tokens
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.checks.sweeps.fields import PIXEL, TEXT
from plumbline_conformance.suite.contract import document
from plumbline_conformance.suite.scenario import (
    Broken,
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_samples import resolved, samples
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Steps = Generator[Request, Exchange, None]
SLACK = 4
"""Tokens that a template may add around a part; fewer than a note would add as text."""
NOTES = frozenset(
    {
        "annotations",
        "cache_control",
        "caller",
        "citations",
        "created_by",
        "logprobs",
        "prompt_cache_breakpoint",
        "status",
    }
)
"""Members that say something about a turn and are not part of it."""
REQUIRED = {"apply_patch_call": ("status",), "apply_patch_call_output": ("status",)}
"""Kinds of items that a note belongs to."""
CALL = "call_1"
BASE = "plain"
EMPTY: Fields = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
"""A schema that strict formats and tools may have."""
TEXTS: Mapping[str, Any] = {
    "arguments": "{}",
    "call_id": CALL,
    "connector_id": "connector_gmail",
    "data": "AAAA",
    "diff": "@@\n+a",
    "file_data": "data:text/plain;base64,SGk=",
    "file_url": "http://127.0.0.1:9/a.txt",
    "image_url": PIXEL,
    "input_schema": EMPTY,
    "parameters": EMPTY,
    "schema": EMPTY,
    "server_url": "https://127.0.0.1:9/",
    "tool_call_id": CALL,
    "tool_use_id": CALL,
    "tools": [{"type": "function", "name": "get_weather", "parameters": EMPTY, "input_schema": EMPTY}],
    "tunnel_id": "tunnel_" + "0" * 32,
    "url": "http://127.0.0.1:9/a.png",
}
"""What members need that a schema does not say."""


class SweptApi(msgspec.Struct, frozen=True):
    """How an API takes turns, and where its answers count the tokens of the prompt."""

    name: str
    path: str
    turn: str
    """The schema of a turn."""
    member: str
    """The field of the turns."""
    request: str
    """The schema of a request."""
    fields: tuple[str, ...]
    """The fields of a request whose variants no other scenario sends."""
    base: Callable[[Target], Fields]
    count: Callable[[Exchange], int]
    rule: str
    needs: tuple[str, ...] = ()


def _before(turn: Fields) -> list[Fields]:
    """Return the call that a result answers."""
    kind = str(turn.get("type") or turn.get("role"))
    if kind == "tool":
        function = {"name": "get_weather", "arguments": "{}"}
        call = {"id": CALL, "type": "function", "function": function}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]
    if kind.endswith("_output") and kind.removesuffix("_output") + "_call" in ITEMS:
        return [ITEMS[kind.removesuffix("_output") + "_call"]]
    if kind.endswith("_call_output"):
        return [ITEMS[kind.removesuffix("_output")]] if kind.removesuffix("_output") in ITEMS else []
    if _has_block(turn, "tool_result"):
        call = {"type": "tool_use", "id": CALL, "name": "get_weather", "input": {}}
        return [{"role": "assistant", "content": [call]}]
    return []


def _after(turn: Fields) -> list[Fields]:
    """Return the result of a call."""
    calls = turn.get("tool_calls")
    if calls:
        return [{"role": "tool", "tool_call_id": calls[0]["id"], "content": "21 degrees"}]
    kind = str(turn.get("type"))
    for output in (f"{kind}_output", kind.removesuffix("_call") + "_output"):
        if kind.endswith("_call") and output in ITEMS:
            return [ITEMS[output]]
    if _has_block(turn, "tool_use"):
        name = next(block["id"] for block in turn["content"] if block["type"] == "tool_use")
        return [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": name, "content": "21 degrees"}],
            }
        ]
    return []


def _has_block(turn: Fields, kind: str) -> bool:
    content = turn.get("content")
    return isinstance(content, list) and any(block.get("type") == kind for block in content)


def _schema(name: str) -> Fields:
    return {"$ref": f"#/components/schemas/{name}"}


ITEMS: dict[str, Fields] = {}
"""The plainest item of each kind of Responses."""
for _item in samples(_schema("InputItem"), TEXTS):
    ITEMS.setdefault(str(_item.get("type")), _item)


def bodies(api: SweptApi) -> Iterator[tuple[str, Fields]]:
    """Yield the fields of each request, by its name; requests with notes follow the same one without them."""
    seen: dict[str, str] = {}
    for turn in samples(_schema(api.turn), TEXTS, LEFT_OUT):
        kind = str(turn.get("type") or turn.get("role"))
        for name, found in ((kind, without_notes(turn)), (f"{kind} noted", turn)):
            turns = [*user(TEXT), *_before(found), found, *_after(found), *user("And now?")]
            shown = json.dumps(turns, sort_keys=True)
            if shown not in seen:
                seen[shown] = f"{name} {len(seen)}"
                yield seen[shown], {api.member: turns}
    members = document()["components"]["schemas"][api.request]["properties"]
    for field in api.fields:
        for place, value in enumerate(_values(members[field])):
            yield f"{field} {place}", {field: value}


def _values(node: Fields) -> list[Any]:
    """Return the values of a field; elements of an array are sent one at a time, because one may be refused."""
    branches = [resolved(branch) for branch in node.get("anyOf", [node])]
    arrays = [branch["items"] for branch in branches if "array" in branch.get("type", ())]
    if arrays:
        return [[element] for element in samples(arrays[0], TEXTS)]
    return samples(node, TEXTS)


def without_notes(value: Any) -> Any:
    """Return a turn without the members that are notes about it."""
    match value:
        case dict():
            needed = REQUIRED.get(str(value.get("type")), ())
            return {
                name: without_notes(member)
                for name, member in value.items()
                if name in needed or name not in NOTES
            }
        case list():
            return [without_notes(member) for member in value]
    return value


LEFT_OUT = ("file_id",)
"""Optional members of turns that are not sent: files of a store, of which there are none here."""


def members(api: SweptApi) -> None:
    """Register the scenario `API/members`."""
    slug = f"{api.name}/members"
    asked = dict(bodies(api))

    def steps(target: Target) -> Steps:
        yield Request(name=BASE, path=api.path, json=api.base(target))
        for name, fields in asked.items():
            yield Request(name=name, path=api.path, json={**api.base(target), **fields})

    scenario(slug, "Each member of a turn and of rare fields, with each of its values", needs=api.needs)(
        steps
    )

    @check(f"{slug}/handled", "Answer each member, or refuse it", "HTTP-09")
    def handled(seen: Transcript) -> Iterator[Problem]:
        """Accept any refusal of a client: a server may lack the feature."""
        accepted(at(seen, BASE))
        for exchange in seen.exchanges[1:]:
            try:
                if answered(exchange).status < 400 or exchange.status >= 500:
                    accepted(exchange)
            except Broken as failure:
                yield failure.problem
            except (Inconclusive, Rejected):
                continue

    @check(f"{slug}/same-prompt", "Show the model a turn without the notes about it", api.rule, milder=True)
    def same_prompt(seen: Transcript) -> Iterator[Problem]:
        accepted(at(seen, BASE))
        for name, plain in NOTED[slug].items():
            try:
                wanted, found = (api.count(accepted(at(seen, one))) for one in (plain, name))
            except (Broken, Inconclusive, Rejected):
                continue
            if abs(found - wanted) > SLACK:
                shown = f"about {wanted} tokens, as without notes"
                yield Problem(expected=shown, actual=str(found), pointer="usage", exchange=name)

    NOTED[slug] = _noted(asked, api.member)


NOTED: dict[str, dict[str, str]] = {}
"""By scenario: the requests with notes, each with the same one without them."""


def _noted(asked: Mapping[str, Fields], member: str) -> dict[str, str]:
    plain = {json.dumps(fields, sort_keys=True): name for name, fields in asked.items()}
    found = {}
    for name, fields in asked.items():
        bare = plain.get(
            json.dumps({key: without_notes(value) for key, value in fields.items()}, sort_keys=True)
        )
        if member in fields and bare not in (None, name):
            found[name] = bare
    return found


def _usage_of(key: str) -> Callable[[Exchange], int]:
    def count(exchange: Exchange) -> int:
        return usage_count(exchange, key)

    return count


def _chat(target: Target) -> Fields:
    return chat(target, messages=user(TEXT), max_tokens=1)


def _response(target: Target) -> Fields:
    return create_response(target, TEXT, max_output_tokens=16, tools=[tools.flat(tools.weather)])


def _message(target: Target) -> Fields:
    return message(target, messages=user(TEXT), max_tokens=1)


members(
    SweptApi(
        "chat",
        "/chat/completions",
        "ChatCompletionRequestMessage",
        "messages",
        "CreateChatCompletionRequest",
        (
            "audio",
            "function_call",
            "functions",
            "moderation",
            "prediction",
            "prompt_cache_options",
            "service_tier",
            "tool_choice",
            "tools",
            "web_search_options",
        ),
        _chat,
        _usage_of("prompt_tokens"),
        "CHAT-13",
    )
)
members(
    SweptApi(
        "responses",
        "/responses",
        "InputItem",
        "input",
        "CreateResponse",
        (
            "access_programs",
            "background_options",
            "image",
            "moderation",
            "multi_agent",
            "prompt_cache_options",
            "reasoning",
            "service_tier",
            "text",
            "tool_choice",
            "tools",
        ),
        _response,
        _usage_of("input_tokens"),
        "R-13",
        ("responses",),
    )
)
members(
    SweptApi(
        "messages",
        "/messages",
        "MessageParam",
        "messages",
        "CreateMessageRequest",
        (
            "access_programs",
            "background_options",
            "billing_policy",
            "cache_control",
            "compaction",
            "context_management",
            "diagnostics",
            "fallback_credit_token",
            "fallbacks",
            "image",
            "inference_geo",
            "output_config",
            "output_format",
            "speed",
            "system",
            "thinking",
            "thread",
            "tool_choice",
            "tools",
        ),
        _message,
        prompt_tokens,
        "MSG-02",
        ("messages",),
    )
)
