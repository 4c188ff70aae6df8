"""Options of the server that change what every client gets.

Laws:
    1. An option changes an answer to the answer of a request that has the field itself.
    2. The request's own field wins, except against options that force a value.
    3. A prompt that fits is the same with and without the options that shorten prompts.
    4. Every chat answer has the role `assistant`, whatever the prompt ends with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from support.bodies import BODIES
from support.models import TOKENIZER, echo, scripted, scripted_info, served, text_chunks
from support.servers.asgi import Answer, serving

from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.operations.defaults import with_defaults
from plumbline.server.settings import Settings

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
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


LIMIT = 150
LONG = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"words {i} " * 5} for i in range(9)]
TOO_LONG: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "system", "content": "Be brief."}, *LONG], "max_completion_tokens": 16},
    COMPLETIONS: {"prompt": "".join(str(turn["content"]) for turn in LONG), "max_tokens": 16},
    RESPONSES: {"input": LONG, "instructions": "Be brief.", "max_output_tokens": 16},
}
ONE_MESSAGE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x" * 400}]},
    RESPONSES: {"input": "x" * 400},
}
DISABLED: dict[str, dict[str, Any]] = {
    CHAT: {},
    COMPLETIONS: {"truncate_prompt_tokens": LIMIT},
    RESPONSES: {"truncation": "disabled"},
}


def short(seen: list[str]) -> ServedModel:
    """A model with a short context, which keeps the prompts that it sees."""

    def script(request: GenerateRequest) -> Iterable[TokenChunk]:
        assert len(request.prompt_token_ids) + 16 <= LIMIT
        seen.append(TOKENIZER.decode(request.prompt_token_ids))
        return echo(request)

    return served(scripted(script, info=scripted_info(max_model_len=LIMIT)))


@pytest.mark.parametrize("path", TOO_LONG)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_is_shortened_if_the_operator_allows_it(
    path: str, stream: bool
) -> None:
    seen: list[str] = []
    body = {"model": "test-model", **TOO_LONG[path], "stream": stream}
    async with serving(short(seen)) as server:
        refused = await server.post(path, body)
    async with serving(short(seen), allow_auto_truncate=True) as server:
        answer = await server.post(path, body)
        own = await server.post(path, {**body, **DISABLED[path]})
        alone = await server.post(path, {**body, **ONE_MESSAGE.get(path, {"max_tokens": LIMIT})})

    assert [each.error["code"] for each in (refused, alone)] == ["context_length_exceeded"] * 2
    assert answer.status == 200
    assert (own.status == 400) is (path != CHAT)
    (prompt, *_) = seen
    if path == COMPLETIONS:
        assert TOO_LONG[path]["prompt"].endswith(prompt)
        assert len(TOKENIZER.encode_text(prompt)) == LIMIT - 16
    else:
        last = str(LONG[-1]["content"])
        assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nwords ")
        assert prompt.endswith(f"<|im_start|>user\n{last}<|im_end|>\n<|im_start|>assistant\n")
    if path == RESPONSES and not stream:
        assert answer.json["truncation"] == "auto"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
async def test_a_prompt_that_fits_is_not_shortened(path: str) -> None:
    seen: list[str] = []
    for allowed in (False, True):
        async with serving(short(seen), allow_auto_truncate=allowed) as server:
            assert (await server.post(path, BODIES[path])).status == 200
    assert seen[0] == seen[1]


def test_a_gap_keeps_its_markers() -> None:
    """A prompt with a suffix begins with the marker of the gap, which must not be cut."""
    request = CreateCompletionRequest(model="m", prompt="a", suffix="b")
    settings = Settings(allow_auto_truncate=True)
    assert with_defaults(request, settings) == request
    cut = with_defaults(msgspec.structs.replace(request, suffix=msgspec.UNSET), settings)
    assert cut.truncate_prompt_tokens == -1


TOOL = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_tools_are_not_shown_with_tool_choice_none(path: str, choice: str) -> None:
    seen: list[int] = []

    def script(request: GenerateRequest) -> Iterable[TokenChunk]:
        seen.append(len(request.prompt_token_ids))
        return text_chunks(request, "yes")

    tools = [{"type": "function", "function": TOOL} if path == CHAT else {"type": "function", **TOOL}]
    model = load(Settings(served_model_names=("test-model",)), scripted(script))
    async with serving(model) as server:
        for fields in ({}, {"tools": tools, "tool_choice": choice}):
            assert (await server.post(path, {**BODIES[path], **fields})).status == 200
    assert (seen[0] == seen[1]) is (choice == "none")
