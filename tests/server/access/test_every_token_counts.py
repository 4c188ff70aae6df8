"""Whatever generates tokens for a request, its key, the access log and the usage of its answer count the same ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

import pytest
from support.models import TOKENIZER, echo, scripted, served, text_chunks
from support.servers.asgi import Server, serving
from support.servers.mcp_requests import ADD, running
from support.speaking import speaking

from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.limits.rates import Accounts
from plumbline.server.protocols.responses.compaction import SUMMARY_REQUEST

CHAT: dict[str, Any] = {
    "model": "test-model",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 40,
}
RESPONSE: dict[str, Any] = {"model": "test-model", "input": "hi"}
LIMITED: dict[str, Any] = {"api_keys": ("k tokens=1000000",), "access_log": True}
LONG = [
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello, Ada."},
    {"role": "user", "content": "Which bolt? " * 95},
    {"role": "assistant", "content": "The one of 41 mm."},
    {"role": "user", "content": "What is my name?"},
]
MANAGED = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "choices": ("/v1/chat/completions", {**CHAT, "n": 3}),
    "prompts": (
        "/v1/completions",
        {"model": "test-model", "prompt": ["a", "bcd", "ef"], "n": 2, "max_tokens": 9},
    ),
    "best of": ("/v1/completions", {"model": "test-model", "prompt": "abc", "best_of": 3, "max_tokens": 9}),
    "response": ("/v1/responses", RESPONSE),
    "message": ("/v1/messages", CHAT),
    "compaction": ("/v1/responses/compact", {"model": "test-model", "input": LONG}),
}


def play(request: GenerateRequest) -> Iterable[TokenChunk]:
    prompt = TOKENIZER.decode(request.prompt_token_ids)
    return text_chunks(request, "Ada; 41 mm.") if SUMMARY_REQUEST in prompt else echo(request)


def counts(usage: dict[str, Any]) -> tuple[int, int]:
    found = [usage.get(f"{name}_tokens") for name in ("input", "output", "prompt", "completion")]
    return tuple(count for count in found if count is not None)


async def paid(
    server: Server, path: str, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the tokens of prompts and answers: those of the usage, and those of the access log."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        answer = await server.post(path, body, headers={"authorization": "Bearer k"})
    assert answer.status == 200, answer.body
    lines = [record.getMessage() for record in caplog.records if record.name == "plumbline.access"]
    logged = dict(re.findall(r"(prompt|completion)_tokens=(\d+)", lines[-1]))
    return counts(answer.json["usage"]), (int(logged["prompt"]), int(logged["completion"]))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is taken from the budget of the key."""
    found: list[int] = []
    monkeypatch.setattr(Accounts, "take", lambda _, __, amount: found.append(amount))
    return found


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_pays_what_the_usage_and_the_log_say(
    way: str, taken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(served(scripted(play)), compaction="summary", **LIMITED) as server:
        usage, logged = await paid(server, *WAYS[way], caplog)
    assert sum(taken) == sum(logged)
    assert usage == logged


async def test_a_key_pays_the_summary_before_an_answer(
    taken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The usage is the answer's alone, by which clients see how full the context is."""
    async with serving(served(scripted(play)), compaction="summary", **LIMITED) as server:
        usage, logged = await paid(server, "/v1/responses", {**RESPONSE, "input": LONG, **MANAGED}, caplog)
        (summary, _) = await paid(server, *WAYS["compaction"], caplog)
    assert logged == tuple(map(sum, zip(usage, summary, strict=True)))
    assert sum(taken) == sum(logged) + sum(summary)


@pytest.mark.parametrize("body", [CHAT, RESPONSE], ids=["chat", "responses"])
async def test_a_key_pays_a_repair(
    body: dict[str, Any], taken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    function = {"name": "book", "parameters": {"type": "object", "properties": {"day": {"type": "integer"}}}}
    is_chat = body is CHAT
    tool = {"type": "function", "function": function} if is_chat else {"type": "function", **function}
    wrong, right = (
        f'<tool_call>\n{{"name": "book", "arguments": {{"day": {day}}}}}\n</tool_call>' for day in ('"x"', 1)
    )
    path = "/v1/chat/completions" if is_chat else "/v1/responses"
    async with serving(speaking(wrong, right, grammars=True), **LIMITED) as server:
        asked = {**body, "tools": [tool], "x_repair_calls": True}
        usage, logged = await paid(
            server, path, {**asked, "max_tokens": 400, "n": 2} if is_chat else asked, caplog
        )
    assert usage == logged
    assert sum(taken) == sum(logged)


async def test_a_key_pays_all_rounds_with_remote_tools(
    taken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(ADD, ADD, "Done.", **LIMITED) as (server, host):
        usage, logged = await paid(server, "/v1/responses", {**RESPONSE, "tools": [host.tool()]}, caplog)
    assert usage == logged
    assert sum(taken) == sum(logged)
