"""Beam search over HTTP: the answers are the beams of a search by single requests, best first."""

from __future__ import annotations

import pytest
from support.models import EOS, TOKENIZER, scripted, served
from support.servers.api_calls import Json, chat, complete, native_server
from support.servers.asgi import Server, serving

from plumbline.port.engine import TokenChunk

from .test_samplers import PATHS, prompt_of


async def by_single_requests(server: Server, prompt: list[int], width: int, length: int) -> list[list[int]]:
    """Search with requests of one token, at length penalty 1."""
    open_: list[tuple[float, list[int]]] = [(0.0, [])]
    complete_: list[tuple[float, list[int]]] = []
    for _ in range(length):
        longer: list[tuple[float, list[int]]] = []
        for total, tokens in open_:
            answer = await complete(
                server,
                prompt=prompt + tokens,
                n_probs=2 * width,
                max_tokens=1,
                temperature=0,
                ignore_eos=True,
                skip_special_tokens=False,
                return_tokens_as_token_ids=True,
            )
            (top,) = answer["choices"][0]["logprobs"]["top_logprobs"]
            for name, value in top.items():
                token = int(name.removeprefix("token_id:"))
                (complete_ if token == EOS else longer).append((total + value, [*tokens, token]))
        open_ = sorted(longer, reverse=True)[:width]

    def score(beam: tuple[float, list[int]]) -> float:
        return beam[0] / (len(prompt) + len(beam[1]) - (beam[1][-1] == EOS))

    return [tokens for _, tokens in sorted([*complete_, *open_], key=score, reverse=True)[:width]]


@pytest.mark.parametrize("width", [1, 3])
async def test_the_choices_are_the_best_beams(width: int) -> None:
    async with native_server() as server:
        prompt = TOKENIZER.encode_text("hello")
        options = {"n": width, "max_tokens": 5, "return_token_ids": True}
        answer = await complete(server, prompt=prompt, use_beam_search=True, **options)
        found = [choice["token_ids"] for choice in answer["choices"]]
        assert found == await by_single_requests(server, prompt, width, 5)
        assert answer["usage"]["completion_tokens"] == sum(map(len, found))
        assert [choice["finish_reason"] for choice in answer["choices"]] == [
            "stop" if tokens[-1] == EOS else "length" for tokens in found
        ]


async def test_a_chat_is_searched_too() -> None:
    async with native_server() as server:
        options = {"n": 2, "max_tokens": 4, "return_token_ids": True, "length_penalty": 0}
        answer = await chat(server, use_beam_search=True, **options)
        same = await complete(server, prompt=answer["prompt_token_ids"], use_beam_search=True, **options)
        assert [c["token_ids"] for c in answer["choices"]] == [c["token_ids"] for c in same["choices"]]
        assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "use_beam_search"),
        ({"n": 100, "max_tokens": 41}, "use_beam_search"),
        ({"stop": ["a"]}, "stop"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"use_beam_search": False, "length_penalty": 1}, "length_penalty"),
        ({"length_penalty": 11}, "length_penalty"),
    ],
)
@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_what_a_search_cannot_do_is_refused_by_name(api: str, fields: Json, param: str) -> None:
    async with native_server() as server:
        body = {"model": "test-model", **prompt_of(api), "use_beam_search": True, "max_tokens": 4, **fields}
        answer = await server.post(PATHS[api], body)
        assert (answer.status, answer.error["param"]) == (400, param)


async def test_values_that_mean_nothing_are_accepted() -> None:
    async with native_server() as server:
        neutral = {
            "frequency_penalty": 0,
            "repetition_penalty": 1,
            "min_tokens": 0,
            "temperature": 0,
            "stop": None,
        }
        await chat(server, use_beam_search=True, n=1, max_tokens=2, **neutral)
        (choice,) = (await complete(server, use_beam_search=True, max_tokens=0))["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "length")


async def test_an_engine_without_logprobs_is_named() -> None:
    async with serving(served(scripted(lambda _: [TokenChunk(token_ids=(70,))]))) as server:
        body = {"model": "test-model", **prompt_of("chat"), "use_beam_search": True, "max_tokens": 4}
        answer = await server.post(PATHS["chat"], body)
        assert (answer.status, answer.error["param"]) == (400, "use_beam_search")
