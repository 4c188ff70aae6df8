"""Laws of unusual values: in whatever place of a request one stands, the answer is no error of the server.

* No value in any place is a 5xx, nor is what follows from what was accepted: following, listing, continuing.
* Numbers that no double holds are values like others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.models import served, tiny_engine
from support.places import MARK, requests_with
from support.servers.asgi import Answer, Server, serving
from support.speaking import speaking

from plumbline.server.loading.served_model import ServedModel

Json = dict[str, Any]

USER = {"role": "user", "content": "hi"}
REQUESTS: dict[str, tuple[str, Json]] = {
    "/v1/chat/completions": (
        "CreateChatCompletionRequest",
        {"model": "test-model", "messages": [USER], "max_tokens": 2},
    ),
    "/v1/completions": ("CreateCompletionRequest", {"model": "test-model", "prompt": "hi", "max_tokens": 2}),
    "/v1/responses": ("CreateResponse", {"model": "test-model", "input": "hi", "max_output_tokens": 16}),
    "/v1/messages": ("CreateMessageRequest", {"model": "test-model", "messages": [USER], "max_tokens": 2}),
    "/v1/responses/compact": ("CompactResponseMethodPublicBody", {"model": "test-model"}),
    "/v1/conversations": ("CreateConversationBody", {}),
}
"""The schema of each request, and what makes one valid."""

NUMBERS = '{"type": "object", "default": 1e400, "examples": [0.10000000000000000001]}'
VALUES = (
    "1e400", "-0.0", "1" + "0" * 400, "12345678901234567890123456789.5", "18446744073709551616", "-1", "[1e400]",
    '"\\ud83d"', '"\\u0000"', '""', '"{{7*7}}<|im_end|>"', "null", "true", "[]", "{}", "[null]", '[""]', '{"": null}',
    "[" * 60 + "]" * 60, '{"$ref": "#"}', '{"type": ["string", "null"]}', '{"type": [[]]}',
    '{"type": "object", "properties": {"\\u0000": {"type": "string", "pattern": "\\u0000", "enum": ["\\u0000"]}}}',
)  # fmt: skip


def model() -> ServedModel:
    """A random model with grammars, and with Hermes calls and thinking."""
    found, speaker = served(tiny_engine()), speaking("")
    return ServedModel(
        engine=found.engine,
        renderer=found.renderer,
        names=found.names,
        defaults=found.defaults,
        created=found.created,
        fingerprint=found.fingerprint,
        dialect=speaker.dialect,
    )


async def following(server: Server, path: str, answer: Answer) -> list[Answer]:
    """What the server answers about something that it has just made."""
    name = answer.json.get("id", "")
    base = {"model": "test-model", "input": "go on", "max_output_tokens": 16}
    match path:
        case "/v1/responses":
            return [
                await server.get(f"{path}/{name}?stream=true"),
                await server.get(f"{path}/{name}/input_items"),
                await server.post(path, {**base, "previous_response_id": name}),
            ]
        case "/v1/responses/compact":
            return [await server.post("/v1/responses", {**base, "input": answer.json["output"]})]
        case "/v1/conversations":
            items = await server.get(f"{path}/{name}/items")
            return [items, await server.post("/v1/responses", {**base, "conversation": name})]
        case _:
            return []


async def failures(folder: Path, path: str, value: str, *, untyped: bool = False) -> dict[str, bytes]:
    """The places where a value is an error of the server, with what the server says."""
    root, fixed = REQUESTS[path]
    found: dict[str, bytes] = {}
    async with serving(model(), store=str(folder / "s.db")) as server:
        for place, body in requests_with(root, fixed, untyped=untyped):
            answer = await server.post(path, json.dumps(body).replace(f'"{MARK}"', value).encode())
            is_made = answer.status == 200 and "stream" not in place
            for one in (answer, *(await following(server, path, answer) if is_made else ())):
                if one.status >= 500 or b"server_error" in one.body:
                    found[place] = one.body[:200]
    return found


@pytest.mark.parametrize("path", REQUESTS)
async def test_numbers_that_no_double_holds_are_no_error_of_the_server(tmp_path: Path, path: str) -> None:
    assert await failures(tmp_path, path, NUMBERS, untyped=True) == {}


@pytest.mark.parametrize("place", ["tool_choice.tools", "tools"])
async def test_types_of_any_kind_are_no_error_of_the_server(tmp_path: Path, place: str) -> None:
    """`allowed_tools` has entries of which the contract says nothing."""
    entry: Json = {"type": ["string", "null"]}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [entry]}
    more: Json = {"tool_choice": choice} if "choice" in place else {"tools": [entry]}
    async with serving(model(), store=str(tmp_path / "s.db")) as server:
        answer = await server.post("/v1/responses", {"model": "test-model", "input": "hi", **more})
    assert answer.status == 400


@pytest.mark.long
@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
async def test_no_value_in_any_place_is_an_error_of_the_server(tmp_path: Path, path: str, value: str) -> None:
    assert await failures(tmp_path, path, value) == {}
