"""Bans and token choices over HTTP, on all endpoints that generate and in both modes.

- Banned texts and words are not in the answer, and the answer is another one.
- A list of pairs is the same logit_bias as a map; false bans.
- `n_probs` gives logprobs; `cache_prompt: false` shares no prefix.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.models import TOKENIZER, scripted, served
from support.servers.api_calls import Json, chat, complete, native_server, respond
from support.servers.asgi import serving

from .test_samplers import PATHS, prompt_of, text

GREEDY: Json = {"temperature": 0}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", PATHS)
async def test_a_banned_text_is_not_in_the_answer(api: str, stream: bool) -> None:
    async with native_server() as server:
        banned: list[str] = []
        for seed in range(4):
            found = await text(server, api, stream=stream, banned_strings=banned, seed=seed)
            assert not any(entry.lower() in found.lower() for entry in banned)
            # A pair of characters across two tokens if there is one. U+FFFD stands for bytes that are no text.
            plain = [piece for piece in re.split("[^ -~]", found) if piece]
            banned.append(max(plain, key=len)[:2])
        assert len({*banned}) == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", PATHS)
async def test_a_bad_word_is_not_drawn(api: str, stream: bool) -> None:
    async with native_server() as server:
        plain = await text(server, api, **GREEDY)
        word = next(character for character in plain if "!" <= character <= "~")
        assert word not in await text(server, api, stream=stream, bad_words=[word], **GREEDY)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", PATHS)
async def test_only_allowed_tokens_are_drawn(api: str, stream: bool) -> None:
    async with native_server() as server:
        ids = TOKENIZER.encode_text("xyz")
        found = await text(server, api, stream=stream, allowed_token_ids=ids, temperature=1.5, seed=3)
        assert set(found) == set("xyz")
        banned = await text(
            server, api, stream=stream, allowed_token_ids=ids, logit_bias=[[ids[0], False], [ids[1], -3.5]]
        )
        assert set(banned) <= set("yz")


@pytest.mark.parametrize("api", PATHS)
async def test_pairs_are_the_same_bias_as_a_map(api: str) -> None:
    async with native_server() as server:
        (token,) = TOKENIZER.encode_text("x")
        pairs = await text(server, api, logit_bias=[[token, 100]], **GREEDY)
        assert pairs == await text(server, api, logit_bias={str(token): 100}, **GREEDY)
        assert set(pairs) == {"x"}


async def test_n_probs_gives_logprobs() -> None:
    async with native_server() as server:
        short = {"max_tokens": 4, "ignore_eos": True, **GREEDY}
        (choice,) = (await chat(server, n_probs=3, **short))["choices"]
        # A last token that is part of a character has no entry.
        assert choice["logprobs"]["content"]
        assert {len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]} == {3}
        # Tokens that are parts of characters have one text, so a map of texts may have fewer entries.
        (choice,) = (await complete(server, n_probs=3, **short))["choices"]
        (named,) = (await complete(server, logprobs=3, **short))["choices"]
        assert choice["logprobs"] == named["logprobs"]
        assert len(choice["logprobs"]["top_logprobs"]) == 4
        answer = await respond(server, n_probs=3, max_output_tokens=16, ignore_eos=True, **GREEDY)
        entries = [
            entry for item in answer["output"] for part in item["content"] for entry in part["logprobs"]
        ]
        assert entries
        assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
        assert (await chat(server, n_probs=0))["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("api", PATHS)
async def test_a_request_that_shares_no_prefix_has_no_cached_tokens(api: str) -> None:
    async with native_server() as server:
        answers: dict[bool, Any] = {}
        for cached in (True, True, False):
            body = {
                "model": "test-model",
                **prompt_of(api, "hello " * 30),
                "cache_prompt": cached,
                "id_slot": -1,
            }
            usage = (await server.post(PATHS[api], body)).json["usage"]
            details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
            answers[cached] = details["cached_tokens"]
        assert answers[True] > 0
        assert answers[False] == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"id_slot": 3}, "id_slot"),
        ({"logit_bias": [[1, True]]}, "logit_bias[0][1]"),
        ({"logit_bias": [[1, 101]]}, "logit_bias[0][1]"),
        ({"logit_bias": [[1, 1], [False, 2]]}, "logit_bias[1][0]"),
        ({"logit_bias": [[1.5, 2]]}, "logit_bias[0][0]"),
        ({"logit_bias": [[10**6, 2]]}, "logit_bias[0][0]"),
        ({"logit_bias": [[1]]}, "logit_bias[0]"),
        ({"bad_words": ["a", " "]}, "bad_words[1]"),
        ({"banned_strings": [""]}, "banned_strings[0]"),
        ({"allowed_token_ids": [5], "logit_bias": [[5, False]]}, "allowed_token_ids"),
        ({"logit_bias": [[token, False] for token in range(TOKENIZER.vocab_size)]}, "logit_bias"),
        ({"n_probs": 21}, "n_probs"),
    ],
)
@pytest.mark.parametrize("api", PATHS)
async def test_a_wrong_value_is_refused_by_name(api: str, fields: Json, param: str) -> None:
    async with native_server() as server:
        answer = await server.post(PATHS[api], {"model": "test-model", **prompt_of(api), **fields})
        assert (answer.status, answer.error["param"]) == (400, param)


async def test_bans_that_leave_no_token_are_the_requests_fault() -> None:
    async with native_server() as server:
        ids = TOKENIZER.encode_text("x")
        body = {"model": "test-model", **prompt_of("chat"), "allowed_token_ids": ids, "bad_words": ["x"]}
        answer = await server.post(PATHS["chat"], body)
        assert answer.status == 400
        assert "leave no token" in answer.error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"bad_words": ["a"]}, {"banned_strings": ["a"]}])
async def test_an_engine_without_bans_refuses_them_by_name(fields: Json, stream: bool) -> None:
    async with serving(served(scripted())) as server:
        for api, path in PATHS.items():
            answer = await server.post(
                path, {"model": "test-model", "stream": stream, **prompt_of(api), **fields}
            )
            assert (answer.status, answer.error["param"]) == (400, next(iter(fields)))
