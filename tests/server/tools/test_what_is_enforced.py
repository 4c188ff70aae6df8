"""Laws of what an answer says of schemas: what is not enforced, and which tools were left out, in every API and mode.

1. `x-plumbline-unenforced` names what is not enforced, and is absent where everything is.
2. One tool that cannot be offered is a 400 that names it; with `x_skip_invalid_tools` the others are offered, and the
   answer names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from support.servers.live import live
from support.servers.pocket import pocket_settings

from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

MODEL = "plumbline-pocket"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "format": "é"}, "b": {"type": "array", "uniqueItems": True}},
}
PLACES = "#/properties/a/format, #/properties/b/uniqueItems"
HELD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CANNOT = {"type": "object", "properties": {"a": {"$ref": "http://elsewhere.test"}}, "required": ["a"]}
INVALID = {"type": "object", "properties": {"a": {"type": "no type"}}}
STRICT = {
    "type": "object",
    "properties": {"a": {"not": {"multipleOf": 2}}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    with (
        live(lambda: load(pocket_settings()), Settings()) as server,
        httpx2.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def body_of(api: str) -> dict[str, Any]:
    common = {"model": MODEL}
    messages = [{"role": "user", "content": "hi"}]
    return {
        "chat": {**common, "messages": messages, "max_tokens": 1},
        "completions": {**common, "prompt": "hi", "max_tokens": 1},
        "responses": {**common, "input": "hi", "max_output_tokens": 16, "store": False},
        "messages": {**common, "messages": messages, "max_tokens": 1},
    }[api]


def format_of(api: str, schema: Any) -> dict[str, Any]:
    named = {"type": "json_schema", "name": "x", "schema": schema}
    return {
        "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        "completions": {"structured_outputs": {"json": schema}},
        "responses": {"text": {"format": named}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    }[api]


def tool_of(api: str, name: str, schema: Any, strict: bool | None = None) -> dict[str, Any]:
    more = {} if strict is None else {"strict": strict}
    if api == "messages":
        return {"name": name, "input_schema": schema, **more}
    function = {"name": name, "parameters": schema, **more}
    return {"type": "function", "function": function} if api == "chat" else {"type": "function", **function}


PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


def ask(client: httpx2.Client, api: str, *, stream: bool = False, **fields: Any) -> httpx2.Response:
    headers = {"anthropic-version": "2023-06-01"} if api == "messages" else {}
    body = {**body_of(api), **fields, **({"stream": True} if stream else {})}
    return client.post(PATHS[api], json=body, headers=headers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", PATHS)
def test_what_is_not_enforced_is_named(client: httpx2.Client, api: str, stream: bool) -> None:
    answer = ask(client, api, stream=stream, **format_of(api, SCHEMA))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-plumbline-unenforced"] == PLACES
    assert '"error":{' not in answer.text
    whole = ask(client, api, stream=stream, **format_of(api, HELD))
    assert "x-plumbline-unenforced" not in whole.headers


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_places_of_tools_begin_with_their_names(client: httpx2.Client, api: str) -> None:
    tools = [tool_of(api, "good", HELD), tool_of(api, "part", SCHEMA), tool_of(api, "none", CANNOT)]
    choice: Any = {"type": "any"} if api == "messages" else "required"
    answer = ask(client, api, tools=tools, tool_choice=choice)
    assert answer.status_code == 200, answer.text
    places = ", ".join(f"part{place}" for place in PLACES.split(", "))
    assert answer.headers["x-plumbline-unenforced"] == f"none#, {places}"


BAD = {
    "a name that cannot be written": ("a b/c", HELD, None),
    "an invalid schema": ("bad", INVALID, None),
    "a strict schema that cannot be enforced": ("bad", STRICT, True),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_a_tool_that_cannot_be_offered_is_named_or_left_out(
    client: httpx2.Client, api: str, kind: str
) -> None:
    name, schema, strict = BAD[kind]
    tools = [tool_of(api, "good", HELD), tool_of(api, name, schema, strict), tool_of(api, "other", HELD)]
    refused = ask(client, api, tools=tools)
    assert refused.status_code == 400
    assert "tools[1]" in refused.text or "'bad'" in refused.text, refused.text
    for stream in (False, True):
        answer = ask(client, api, stream=stream, tools=tools, x_skip_invalid_tools=True)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-plumbline-skipped-tools"] == name.replace(" ", "%20")
        assert "x-plumbline-ignored" not in answer.headers
    forced: dict[str, Any] = (
        {"type": "tool", "name": name} if api == "messages" else {"type": "function", "name": name}
    )
    if api == "chat":
        forced = {"type": "function", "function": {"name": name}}
    assert ask(client, api, tools=tools, x_skip_invalid_tools=True, tool_choice=forced).status_code == 400


def test_tools_without_names_are_noted_by_their_places_in_the_request(client: httpx2.Client) -> None:
    bad = {"type": "function", "function": {"name": 5}}
    tools = [tool_of("chat", "good", HELD), bad, tool_of("chat", "other", HELD), bad, bad]
    answer = ask(client, "chat", tools=tools, x_skip_invalid_tools=True)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-plumbline-skipped-tools"] == "tools[1], tools[3], tools[4]"


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_many_invalid_tools_are_not_read_again_and_again(client: httpx2.Client, api: str) -> None:
    tools = [tool_of(api, f"bad{number}", INVALID) for number in range(40)]
    assert ask(client, api, tools=tools, x_skip_invalid_tools=True).status_code == 400
