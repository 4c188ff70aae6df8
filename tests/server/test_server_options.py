"""Options of the server that change what every client gets.

Laws:
    1. An option changes an answer to the answer of a request that has the field itself.
    2. The request's own field wins, except against options that force a value.
    3. Every chat answer has the role `assistant`, whatever the prompt ends with.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.asgi import Answer, serving
from support.bodies import BODIES
from support.models import scripted, served

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def plain(value: Any) -> Any:
    """Return JSON without what differs between any two answers."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if name not in ("id", "created")}
    return [plain(each) for each in value] if isinstance(value, list) else value


def content(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    if answer.body.startswith(b"{"):
        return plain(answer.json)
    return [plain(event.json) for event in answer.events if event.data != "[DONE]"]


@BOTH
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stream_options": None},
        {"stream_options": {"include_usage": False}},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"continuous_usage_stats": True}},
    ],
)
async def test_every_stream_has_the_usage_that_the_operator_wants(path: str, options: dict[str, Any]) -> None:
    wanted = {**(options.get("stream_options") or {}), "include_usage": True}
    async with serving(served(scripted())) as server:
        asked = await server.post(path, {**BODIES[path], "stream": True, "stream_options": wanted})
    async with serving(served(scripted()), enable_force_include_usage=True) as server:
        forced = await server.post(path, {**BODIES[path], "stream": True, **options})
        whole = await server.post(path, BODIES[path])
        refused = await server.post(path, {**BODIES[path], "stream_options": {"include_usage": True}})

    assert content(forced) == content(asked)
    assert content(forced)[-1]["choices"] == []
    assert content(forced)[-1]["usage"]["total_tokens"] > 0
    assert whole.status == 200
    assert (refused.status, refused.error["param"]) == (400, "stream_options")


@BOTH
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "sent", [{}, {"return_tokens_as_token_ids": True}, {"return_tokens_as_token_ids": False}]
)
async def test_tokens_are_named_as_the_request_or_else_the_operator_wants(
    path: str, stream: bool, sent: dict[str, bool]
) -> None:
    body = {**BODIES[path], "stream": stream, "logprobs": True if path == CHAT else 1}
    for default in (False, True):
        named = sent.get("return_tokens_as_token_ids", default)
        async with serving(served(scripted()), return_tokens_as_token_ids=default) as server:
            found = await server.post(path, {**body, **sent})
            expected = await server.post(path, {**body, "return_tokens_as_token_ids": named})
        assert content(found) == content(expected)
        assert (b"token_id:" in found.body) is named


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("last", ["user", "system", "assistant"])
@pytest.mark.parametrize("fields", [{}, {"add_generation_prompt": False}, {"continue_final_message": True}])
async def test_every_answer_is_the_assistants(n: int, last: str, fields: dict[str, bool]) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": last, "content": "so"}]
    body = {**BODIES[CHAT], "messages": messages, "n": n, **fields}
    async with serving(served(scripted())) as server:
        whole = await server.post(CHAT, body)
        stream = await server.post(CHAT, {**body, "stream": True})

    assert [choice["message"]["role"] for choice in content(whole)["choices"]] == ["assistant"] * n
    deltas = [choice["delta"] for chunk in content(stream) for choice in chunk["choices"]]
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"] * n
