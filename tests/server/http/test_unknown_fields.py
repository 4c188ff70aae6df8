"""Fields that no operation has are named, never dropped without a word.

Laws:
    1. `x-plumbline-ignored` names exactly the unknown fields that are not null, at any depth, in both modes.
    2. With `--strict` the first of them is a 400 that names it.
    3. The header is printable ASCII and short, whatever the names are.
    4. A body of known fields has no such header.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bodies import BODIES
from support.models import scripted, served
from support.servers.asgi import serving

from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract.wire.decode import decode
from plumbline.contract.wire.names.unknown import header_value, unknown_fields

CHAT = "/v1/chat/completions"
ADDED = {
    "made_up": 1,
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi", "cache_control": {"type": "x"}}],
            "mood": 2,
        }
    ],
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_field_is_named_in_a_header_and_in_the_log(
    path: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    body = {**BODIES[path], "made_up": 1, "also": {"x": 1}, "absent": None}
    if stream and path in (CHAT, "/v1/completions", "/v1/responses"):
        body["stream"] = True
    async with serving(served(scripted())) as server:
        with caplog.at_level(logging.WARNING, "plumbline.server"):
            answer = await server.post(path, body)

    assert answer.status == 200
    assert answer.header("x-plumbline-ignored") == "made_up, also"
    assert [r.getMessage() for r in caplog.records if "made_up" in r.getMessage()] == [
        f"request {answer.header('x-request-id')}: ignored unknown fields: made_up, also"
    ]


@pytest.mark.parametrize("path", BODIES)
async def test_known_fields_are_not_named(path: str) -> None:
    async with serving(served(scripted())) as server:
        answer = await server.post(path, BODIES[path])

    assert answer.status == 200
    assert answer.header("x-plumbline-ignored") is None


async def test_unknown_fields_inside_of_messages_are_named_by_their_path() -> None:
    async with serving(served(scripted())) as server:
        answer = await server.post(CHAT, {**BODIES[CHAT], **ADDED})

    assert (
        answer.header("x-plumbline-ignored")
        == "messages[0].content[0].cache_control, messages[0].mood, made_up"
    )


@pytest.mark.parametrize("path", BODIES)
async def test_a_strict_server_refuses_the_first_unknown_field(path: str) -> None:
    async with serving(served(scripted()), strict=True) as server:
        refused = await server.post(path, {**BODIES[path], "made_up": 1})
        taken = await server.post(path, {**BODIES[path], "made_up": None})

    assert refused.status == 400
    assert refused.error["message"] == "Unknown parameter: 'made_up'."
    assert taken.status == 200


@given(st.lists(st.text(), max_size=40))
def test_the_header_is_printable_and_short(names: list[str]) -> None:
    value = header_value(CreateChatCompletionRequest, names)

    assert value.isascii()
    assert value.isprintable()
    assert len(value) < 2000
    if len(names) > 16:
        assert value.endswith(f"and {len(names) - 16} more")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("choice", "tool_choice"),
        ("Max_Tokens", "max_tokens"),
        ("topp", "top_p"),
        ("made_up", None),
        ("a.top_pp", None),
    ],
)
async def test_near_misses_name_the_field_that_was_meant(name: str, nearest: str | None) -> None:
    body = {**BODIES["/v1/chat/completions"], name: 1}
    async with serving(served(scripted())) as server:
        answer = await server.post("/v1/chat/completions", body)
    async with serving(served(scripted()), strict=True) as server:
        refused = await server.post("/v1/chat/completions", body)
    assert answer.header("x-plumbline-ignored") == (name if nearest is None else f"{name} ({nearest}?)")
    assert ("Did you mean" in refused.error["message"]) is (nearest is not None)
    assert nearest is None or f"'{nearest}'" in refused.error["message"]


KNOWN = {
    "model": st.just("m"),
    "messages": st.just([{"role": "user", "content": "hi"}]),
    "n": st.none() | st.integers(1, 3),
    "stream_options": st.none() | st.just({"include_usage": True}),
    "logit_bias": st.just({"7": 1}),
    "metadata": st.just({"any": "name"}),
    "chat_template_kwargs": st.just({"any": {"name": 1}}),
}


@given(
    st.fixed_dictionaries({}, optional=KNOWN), st.dictionaries(st.text(min_size=1), st.integers() | st.none())
)
def test_exactly_the_unknown_fields_are_found(known: dict[str, Any], others: dict[str, Any]) -> None:
    fields = set(CreateChatCompletionRequest.__struct_encode_fields__)
    others = {name: value for name, value in others.items() if name not in fields}
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], **known, **others}
    ).encode()

    found = unknown_fields(decode(CreateChatCompletionRequest, body), body)

    assert found == [name for name, value in others.items() if value is not None]
