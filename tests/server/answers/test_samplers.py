"""The samplers of llama.cpp and TabbyAPI over HTTP, on all endpoints that generate and in both modes.

- With a seed, a stream has the text of the whole answer.
- A sampler that leaves one token gives the greedy answer.
- An engine without samplers refuses each of them by name.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.models import scripted, served
from support.servers.api_calls import Json, chat, complete, native_server, respond, streamed
from support.servers.asgi import Server, serving

SEEDED: Json = {"temperature": 0.15, "seed": 31}
"""The random model is undecided, so only at this temperature some tokens are much likelier than others; with this
seed each of the samplers changes the answer."""
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"}
FIELDS: list[Json] = [
    {"repeat_penalty": 0.01},
    {"repeat_penalty": 0.01, "repeat_last_n": 4},
    {"typical_p": 0.5},
    {"top_a": 1},
    {"tfs": 0.5},
    {"top_n_sigma": 1.5},
    {"xtc_probability": 1, "xtc_threshold": 0.01},
    {"dry_multiplier": 5, "dry_base": 2, "dry_allowed_length": 0, "dry_penalty_last_n": 64},
    {"dry_multiplier": 5, "dry_allowed_length": 0, "dry_sequence_breakers": ["a", "bc"]},
    {"mirostat": 1, "mirostat_tau": 2, "mirostat_eta": 0.5},
    {"mirostat": 2, "mirostat_tau": 2, "mirostat_eta": 0.5},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 2},
    {"samplers": ["top_k", "min_p", "temperature", "temperature"], "top_k": 3},
]


SPELLED: list[tuple[Json, Json]] = [
    ({"rep_pen": 0.01, "penalty_range": 4}, {"repetition_penalty": 0.01, "repeat_last_n": 4}),
    ({"rep_pen": 0.01, "repetition_range": 4}, {"repetition_penalty": 0.01, "repeat_last_n": 4}),
    ({"typical": 0.5}, {"typical_p": 0.5}),
    ({"dry_multiplier": 5, "dry_range": 64}, {"dry_multiplier": 5, "dry_penalty_last_n": 64}),
    ({"mirostat_mode": 2, "mirostat_tau": 2}, {"mirostat": 2, "mirostat_tau": 2}),
    ({"dynatemp_range": 0.5, "temp_exponent": 2}, {"dynatemp_range": 0.5, "dynatemp_exponent": 2}),
    ({"stop_sequence": ["a"], "no_stop_trim": True}, {"stop": ["a"], "include_stop_str_in_output": True}),
    ({"ban_eos_token": True, "min_length": 3}, {"ignore_eos": True, "min_tokens": 3}),
    ({"allowed_tokens": [70, 71]}, {"allowed_token_ids": [70, 71]}),
    ({"regex_pattern": "a+b"}, {"regex": "a+b"}),
]
"""Other spellings, and ours."""


async def text(server: Server, api: str, *, stream: bool = False, **options: Any) -> str:
    limit = {"max_output_tokens" if api == "responses" else "max_tokens": 24, "ignore_eos": True}
    if not stream:
        answer = await {"chat": chat, "completions": complete, "responses": respond}[api](
            server, **limit, **options
        )
        if api == "responses":
            return "".join(part["text"] for item in answer["output"] for part in item["content"])
        (choice,) = answer["choices"]
        return str(choice["text"] if api == "completions" else choice["message"]["content"])
    prompt: dict[str, Json] = {
        "chat": {"messages": [{"role": "user", "content": "hello world"}]},
        "completions": {"prompt": "hello"},
        "responses": {"input": "hello world"},
    }
    events = await streamed(server, PATHS[api], {**prompt[api], **limit, **options})
    if api == "responses":
        return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    choices = [choice for event in events for choice in event["choices"]]
    if api == "completions":
        return "".join(choice["text"] for choice in choices)
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "+".join(fields))
@pytest.mark.parametrize("api", PATHS)
async def test_a_sampler_has_an_effect_in_both_modes(api: str, fields: Json) -> None:
    async with native_server() as server:
        plain, whole, stream = await asyncio.gather(
            text(server, api, **SEEDED),
            text(server, api, **SEEDED, **fields),
            text(server, api, stream=True, **SEEDED, **fields),
        )
        assert whole != plain
        assert stream == whole


NEUTRAL: Json = {
    "repeat_penalty": 1,
    "repeat_last_n": -1,
    "typical_p": 1,
    "top_a": 0,
    "tfs": 1,
    "top_n_sigma": 0,
    "xtc_probability": 0,
    "xtc_threshold": 0.3,
    "dry_multiplier": 0,
    "dry_base": 2,
    "mirostat": 0,
    "mirostat_tau": 3,
    "dynatemp_range": 0,
    "dynatemp_exponent": 3,
}


@pytest.mark.parametrize("api", PATHS)
async def test_neutral_values_change_nothing(api: str) -> None:
    async with native_server() as server:
        assert await text(server, api, **SEEDED, **NEUTRAL) == await text(server, api, **SEEDED)
    async with serving(served(scripted())) as server:
        await text(server, api, **NEUTRAL)


@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 1e-9, "samplers": ["top_k", "typ_p"], "top_k": 1},
        {"top_a": 1, "temperature": 0},
        {"mirostat": 2, "mirostat_tau": 0},
    ],
)
async def test_a_sampler_that_leaves_one_token_is_greedy(fields: Json) -> None:
    async with native_server() as server:
        assert await text(server, "chat", **{**SEEDED, **fields}) == await text(server, "chat", temperature=0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"repeat_penalty": 1.3, "repetition_penalty": 1.2}, "repeat_penalty"),
        ({"mirostat": 1, "samplers": ["top_k"]}, "samplers"),
        ({"samplers": ["nonsense"]}, "samplers[0]"),
        ({"mirostat": 3}, "mirostat"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers[0]"),
    ],
)
@pytest.mark.parametrize("api", PATHS)
async def test_a_wrong_value_is_refused_by_name(api: str, fields: Json, param: str) -> None:
    async with native_server() as server:
        answer = await server.post(PATHS[api], {"model": "test-model", **prompt_of(api), **fields})
        assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize("api", PATHS)
async def test_other_spellings_have_the_same_effect(api: str) -> None:
    """`max_length` and `reasoning_budget_tokens` bound what is generated; tests of readers compare them, too."""
    async with native_server() as server:
        for theirs, ours in SPELLED:
            body = {"model": "test-model", **prompt_of(api), **SEEDED, "max_tokens": 24}
            if api == "responses":
                body["max_output_tokens"] = body.pop("max_tokens")
            found, known = [await server.post(PATHS[api], {**body, **fields}) for fields in (theirs, ours)]
            assert (found.status, found.header("x-plumbline-ignored")) == (200, None)
            assert _said(found.json) == _said(known.json)
        if api != "responses":
            body["max_length"] = body.pop("max_tokens")
            assert (await server.post(PATHS[api], body)).json["usage"]["completion_tokens"] <= 24
        if api == "chat":
            for name in ("reasoning_budget_tokens", "thinking_token_budget"):
                refused = await server.post(PATHS[api], {**body, name: 5})
                assert (refused.status, refused.error["param"]) == (400, name), "this model does not think"


def _said(answer: Json) -> Any:
    if "output" in answer:
        return [part["text"] for item in answer["output"] for part in item["content"]]
    return [choice.get("text") or choice["message"]["content"] for choice in answer["choices"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "+".join(fields))
async def test_an_engine_without_samplers_refuses_them_by_name(fields: Json, stream: bool) -> None:
    if list(fields) == ["repeat_penalty"]:
        return  # Only another name for a penalty that every engine has.
    async with serving(served(scripted())) as server:
        for api, path in PATHS.items():
            body = {"model": "test-model", "stream": stream, **prompt_of(api), **fields}
            answer = await server.post(path, body)
            assert answer.status == 400
            assert answer.error["param"] in fields


def prompt_of(api: str, content: str = "hello") -> Json:
    prompts: dict[str, Json] = {
        "chat": {"messages": [{"role": "user", "content": content}]},
        "completions": {"prompt": content},
        "responses": {"input": content},
    }
    return prompts[api]
