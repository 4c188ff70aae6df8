"""Facts about single tokens over HTTP, on chat and legacy completions and in both modes.

- The ids of an answer decode to its text and are as many as its usage counts.
- The logprobs of a prompt are those that `echo` gives, with the rank of each token.
- Further token ids have the logprobs that a large enough `top_logprobs` gives them.
- A truncated prompt is the same as its last tokens.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.models import TOKENIZER
from support.servers.api_calls import Json, chat, complete, native_server, streamed
from support.servers.asgi import Server

from .test_samplers import PATHS, prompt_of

APIS = ["chat", "completions"]
SEEDED: Json = {"seed": 5, "max_tokens": 12, "ignore_eos": True}


async def ids_of(
    server: Server, api: str, *, stream: bool, **options: Any
) -> tuple[list[int], list[list[int]], int]:
    """Return the prompt's ids, those of each choice, and the number of generated tokens."""
    if not stream:
        answer = await (chat if api == "chat" else complete)(server, return_token_ids=True, **options)
        prompt = answer if api == "chat" else answer["choices"][0]
        found = [choice["token_ids"] for choice in answer["choices"]]
        return prompt["prompt_token_ids"], found, answer["usage"]["completion_tokens"]
    content = "hello world" if api == "chat" else "hello"
    body = {
        **prompt_of(api, content),
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    events = await streamed(server, PATHS[api], body)
    prompt = events[0] if api == "chat" else events[0]["choices"][0]
    joined: list[list[int]] = [[] for _ in range(options.get("n", 1))]
    for event in events:
        for choice in event["choices"]:
            joined[choice["index"]] += choice["token_ids"]
    return prompt["prompt_token_ids"], joined, events[-1]["usage"]["completion_tokens"]


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"stop": ["e", "a", "\x07"]}, {"max_tokens": 1}])
@pytest.mark.parametrize("api", APIS)
async def test_the_ids_of_an_answer_are_the_same_in_both_modes(api: str, options: Json) -> None:
    async with native_server() as server:
        whole = await ids_of(server, api, stream=False, **{**SEEDED, **options})
        assert await ids_of(server, api, stream=True, **{**SEEDED, **options}) == whole
        assert sum(map(len, whole[1])) == whole[2]
        prompt = TOKENIZER.decode(whole[0])
        assert prompt == "hello" if api == "completions" else "hello world" in prompt


@pytest.mark.parametrize("api", APIS)
async def test_the_ids_decode_to_the_answer(api: str) -> None:
    async with native_server() as server:
        answer = await (chat if api == "chat" else complete)(server, return_token_ids=True, **SEEDED)
        (choice,) = answer["choices"]
        found = choice["message"]["content"] if api == "chat" else choice["text"]
        shown = [token for token in choice["token_ids"] if token not in TOKENIZER.special_ids]
        assert TOKENIZER.decode(shown) == found
        plain = (await (chat if api == "chat" else complete)(server, **SEEDED))["choices"][0]
        # Clients of vLLM read these as attributes, so a whole answer has them.
        assert plain["token_ids"] is plain["stop_reason"] is None


@pytest.mark.parametrize("api", APIS)
async def test_tokens_can_be_named_by_their_id(api: str) -> None:
    async with native_server() as server:
        options = {**SEEDED, "return_token_ids": True, "return_tokens_as_token_ids": True}
        if api == "chat":
            (choice,) = (await chat(server, logprobs=True, top_logprobs=2, **options))["choices"]
            names = [entry["token"] for entry in choice["logprobs"]["content"]]
            tops = [
                rival["token"] for entry in choice["logprobs"]["content"] for rival in entry["top_logprobs"]
            ]
            events = await streamed(
                server,
                PATHS[api],
                {**prompt_of(api, "hello world"), "logprobs": True, "top_logprobs": 2, **options},
            )
            parts = [
                choice.get("logprobs") or {"content": []} for event in events for choice in event["choices"]
            ]
            sent = [entry["token"] for part in parts for entry in part["content"]]
        else:
            (choice,) = (await complete(server, logprobs=2, **options))["choices"]
            names = choice["logprobs"]["tokens"]
            tops = [name for top in choice["logprobs"]["top_logprobs"] for name in top]
            events = await streamed(server, PATHS[api], {**prompt_of(api), "logprobs": 2, **options})
            parts = [
                choice.get("logprobs") or {"tokens": []} for event in events for choice in event["choices"]
            ]
            sent = [name for part in parts for name in part["tokens"]]
        shown = [token for token in choice["token_ids"] if token not in TOKENIZER.special_ids]
        assert names == sent == [f"token_id:{token}" for token in shown]
        assert all(name.removeprefix("token_id:").isdigit() for name in tops)


async def test_an_echoed_prompt_is_named_by_ids_from_its_first_token_on() -> None:
    async with native_server() as server:
        options = {**SEEDED, "return_token_ids": True, "return_tokens_as_token_ids": True}
        (choice,) = (await complete(server, echo=True, logprobs=1, **options))["choices"]
        names = choice["logprobs"]["tokens"]
        assert names[: len(choice["prompt_token_ids"])] == [
            f"token_id:{one}" for one in choice["prompt_token_ids"]
        ]
        assert choice["logprobs"]["token_logprobs"][0] is None


@pytest.mark.parametrize("api", APIS)
async def test_named_token_ids_replace_the_most_likely_ones(api: str) -> None:
    async with native_server() as server:
        wanted = [3, 200, 3, 77]
        options = {**SEEDED, "logprob_token_ids": wanted, "return_tokens_as_token_ids": True}
        if api == "chat":
            (choice,) = (await chat(server, logprobs=True, top_logprobs=4, **options))["choices"]
            drawn = [entry["token"] for entry in choice["logprobs"]["content"]]
            found = [
                {rival["token"]: rival["logprob"] for rival in entry["top_logprobs"]}
                for entry in choice["logprobs"]["content"]
            ]
        else:
            (choice,) = (await complete(server, logprobs=4, **options))["choices"]
            drawn, found = choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"]
        assert drawn
        for entry, token in zip(found, drawn, strict=True):
            assert entry.keys() == {token, *(f"token_id:{one}" for one in wanted)}


async def test_further_logprobs_are_those_of_the_distribution() -> None:
    """What else is asked for does not change them."""
    async with native_server() as server:
        ids = list(range(128))
        same = {"logprobs": 5, "max_tokens": 1, "temperature": 0, "return_tokens_as_token_ids": True}
        one = await complete(server, logprob_token_ids=ids, **same)
        two = await complete(server, logprob_token_ids=ids[:40], **same)
        (many,), (few,) = (answer["choices"][0]["logprobs"]["top_logprobs"] for answer in (one, two))
        assert all(many[name] == pytest.approx(value, abs=1e-5) for name, value in few.items())
        assert sum(map(math.exp, many.values())) <= 1 + 1e-4


@pytest.mark.parametrize("api", APIS)
async def test_prompt_logprobs_are_those_of_an_echo(api: str) -> None:
    async with native_server() as server:
        options = {"max_tokens": 3, "temperature": 0, "return_token_ids": True}
        if api == "chat":
            answer = await chat(server, prompt_logprobs=4, **options)
            entries, ids = answer["prompt_logprobs"], answer["prompt_token_ids"]
            assert (await chat(server, **options)).get("prompt_logprobs") is None
        else:
            (choice,) = (await complete(server, prompt_logprobs=4, **options))["choices"]
            entries, ids = choice["prompt_logprobs"], choice["prompt_token_ids"]
        echoed = await complete(server, prompt=ids, echo=True, logprobs=4, max_tokens=0)
        logprobs = echoed["choices"][0]["logprobs"]["token_logprobs"]

        assert entries[0] is None
        assert len(entries) == len(ids)
        for token, entry, expected in zip(ids[1:], entries[1:], logprobs[1:], strict=True):
            own = entry[str(token)]
            assert next(iter(entry)) == str(token)
            assert own["logprob"] == pytest.approx(expected, abs=1e-4)
            assert own["decoded_token"] == TOKENIZER.token_text(token)
            assert 4 <= len(entry) <= 5
            more_likely = sum(rival["logprob"] > own["logprob"] for rival in entry.values())
            assert own["rank"] == more_likely + 1 or (own["rank"] > 4 and more_likely == 4)
            ranks = [rival["rank"] for name, rival in entry.items() if name != str(token)]
            assert sorted({*ranks, own["rank"]})[:4] == [1, 2, 3, 4]


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_truncated_prompt_is_its_last_or_first_tokens(stream: bool, side: str | None) -> None:
    async with native_server() as server:
        ids = TOKENIZER.encode_text("hello wonderful world")
        for count in (1, 4, len(ids), 500):
            cut = ids[:count] if side == "right" else ids[-count:]
            options = {
                **SEEDED,
                "prompt": "hello wonderful world",
                "truncate_prompt_tokens": count,
                "truncation_side": side,
                "echo": not stream,
            }
            prompt, found, _ = await ids_of(server, "completions", stream=stream, **options)
            assert prompt == cut
            _, alone, _ = await ids_of(server, "completions", stream=stream, **SEEDED, prompt=cut)
            assert found == alone
        echoed = await complete(
            server, prompt="hello world", truncate_prompt_tokens=3, echo=True, max_tokens=0
        )
        assert echoed["choices"][0]["text"] == TOKENIZER.decode(TOKENIZER.encode_text("hello world")[-3:])


@pytest.mark.parametrize("api", APIS)
async def test_what_does_not_fit_is_cut_if_that_is_wanted(api: str) -> None:
    async with native_server() as server:
        body = {"model": "test-model", **prompt_of(api, "ab" * 2000), "max_tokens": 20, "ignore_eos": True}
        assert (await server.post(PATHS[api], body)).status == 400
        answer = await server.post(PATHS[api], {**body, "truncate_prompt_tokens": -1})
        assert answer.status == 200
        assert answer.json["usage"] | {"prompt_tokens_details": None, "completion_tokens_details": None} == {
            "prompt_tokens": 512 - 20,
            "completion_tokens": 20,
            "total_tokens": 512,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 2, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [3]}, "logprob_token_ids"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
)
@pytest.mark.parametrize("api", APIS)
async def test_a_wrong_value_is_refused_by_name(api: str, fields: Json, param: str) -> None:
    async with native_server() as server:
        answer = await server.post(PATHS[api], {"model": "test-model", **prompt_of(api), **fields})
        assert (answer.status, answer.error["param"]) == (400, param)


async def test_a_token_that_the_model_lacks_is_refused_by_name() -> None:
    async with native_server() as server:
        body = {"model": "test-model", **prompt_of("chat"), "logprobs": True, "logprob_token_ids": [5, 10**6]}
        answer = await server.post(PATHS["chat"], body)
        assert (answer.status, answer.error["param"]) == (400, "logprob_token_ids[1]")
