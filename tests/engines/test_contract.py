"""The contract of engines, tried on each that is installed.

Greedy tokens and logprobs are those of transformers on the pocket model. Penalties, bias, bans and filters are compared
with definitions written here. Draws, grammars, budgets, aborts, order and bounds obey the port.
`PLUMBLINE_ENGINES=thorough` takes the long numbers.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.drawn_grammars import STUDY, drawn
from support.weights.engine_features import DECLARED, feature_table
from support.weights.engines import (
    ENGINES,
    NUM_WAITING,
    Answer,
    EngineKind,
    Harness,
    Reference,
    decode,
    encode,
    prompts,
    started,
    token_id,
)

from plumbline.engines.port import (
    SAMPLER_ORDER,
    Dry,
    EngineFullError,
    Mirostat,
    RefusedRequestError,
    SamplerChain,
    ThinkingBudget,
)

THOROUGH = os.environ.get("PLUMBLINE_ENGINES") == "thorough"
STEPS = 64 if THOROUGH else 16
NUM_GRAMMARS = 200 if THOROUGH else 24
INFINITE = float("-inf")


@pytest.fixture(
    scope="module",
    # Other engines have fast tests of their own; the remote engine is the native one behind a socket.
    params=[
        pytest.param(kind, marks=() if kind.name == "native" else pytest.mark.long, id=kind.name)
        for kind in ENGINES
    ],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    kind: EngineKind = request.param
    if kind.missing:
        pytest.skip(f"not installed: {kind.missing}")
    folder: Path = tmp_path_factory.mktemp(kind.name)
    with started(kind, folder) as harness:
        yield harness


@cache
def reference_of(adapter: Path | None) -> Reference:
    return Reference(adapter)


@pytest.fixture(scope="module")
def reference(engine: Harness) -> Reference:
    return reference_of(engine.adapter)


PROMPTS = prompts(20)


def needs(engine: Harness, *features: str) -> None:
    """Skip a law about something that the engine does not declare; that it is refused is a law of its own."""
    for feature in features:
        if feature not in engine.features:
            pytest.skip(f"{engine.kind.name} has no {feature}")


# Tokens and logprobs


@pytest.mark.parametrize("batch", [1, pytest.param(8, marks=pytest.mark.long), 32])
def test_greedy_tokens_are_those_of_the_reference(engine: Harness, reference: Reference, batch: int) -> None:
    """In batches of prompts of several lengths, each with a number of tokens of its own."""
    chosen = (PROMPTS + prompts(12, seed=2))[: max(batch, 10)]
    steps = [STEPS - index % 5 for index in range(len(chosen))]
    requests = [
        engine.request(prompt, max_tokens=number, ignore_eos=True)
        for prompt, number in zip(chosen, steps, strict=True)
    ]
    found: list[Answer] = []
    for start in range(0, len(requests), batch):
        found += engine.answers(*requests[start : start + batch])
    for prompt, number, answer in zip(chosen, steps, found, strict=True):
        assert answer.token_ids == reference.greedy(prompt, number)
        assert answer.reason == "length"
        assert [chunk.finish_reason for chunk in answer.chunks[:-1]] == [None] * (len(answer.chunks) - 1)


def test_an_answer_ends_with_its_end_of_sequence(engine: Harness, reference: Reference) -> None:
    for prompt, answer in zip(
        PROMPTS[:5], engine.answers(*(engine.request(p, max_tokens=200) for p in PROMPTS[:5])), strict=True
    ):
        assert answer.token_ids == reference.greedy(prompt, 200, ends=True)
        assert answer.reason == "stop"


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_logprobs_are_those_of_the_raw_distribution(engine: Harness, reference: Reference, top: int) -> None:
    """Whatever temperature, filters and penalties do to the draw."""
    for prompt in PROMPTS[:4]:
        answer = engine.answer(
            prompt, max_tokens=12, logprobs=top, temperature=0.8, seed=7, top_k=20, frequency_penalty=0.5
        )
        table = reference.logprobs([*prompt, *answer.token_ids])[len(prompt) - 1 :]
        assert len(answer.logprobs) == len(answer.token_ids)
        for token, entry, row in zip(answer.token_ids, answer.logprobs, table, strict=False):
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(row[token], abs=engine.kind.tolerance)
            assert len(entry.top) == top
            best = np.sort(row)[::-1][:top]
            assert [value for _, value in entry.top] == pytest.approx(list(best), abs=engine.kind.tolerance)
            assert all(value == pytest.approx(row[t], abs=engine.kind.tolerance) for t, value in entry.top)


def test_logprobs_of_chosen_ids_come_besides(engine: Harness, reference: Reference) -> None:
    needs(engine, "logprob_token_ids")
    answer = engine.answer(PROMPTS[0], max_tokens=4, logprobs=2, logprob_token_ids=(700, 30))
    table = reference.logprobs([*PROMPTS[0], *answer.token_ids])[len(PROMPTS[0]) - 1 :]
    for entry, row in zip(answer.logprobs, table, strict=False):
        found = dict(entry.top)
        assert {700, 30} <= found.keys()
        assert found[700] == pytest.approx(row[700], abs=engine.kind.tolerance)


def test_prompt_logprobs_are_those_of_the_prompt(engine: Harness, reference: Reference) -> None:
    needs(engine, "prompt_logprobs")
    for prompt in PROMPTS[:4]:
        # Twice: the second time the prompt may be in a cache, and the logprobs are due all the same.
        for _ in range(2):
            answer = engine.answer(prompt, max_tokens=2, prompt_logprobs=3)
            entries = answer.chunks[0].prompt_logprobs
            assert entries is not None
            assert entries[0] is None
            assert len(entries) == len(prompt)
            table = reference.logprobs(prompt)
            for token, entry, row in zip(prompt[1:], entries[1:], table, strict=False):
                assert entry is not None
                assert entry.token_id == token
                assert entry.logprob == pytest.approx(row[token], abs=engine.kind.tolerance)
                assert [v for _, v in entry.top] == pytest.approx(
                    list(np.sort(row)[::-1][:3]), abs=engine.kind.tolerance
                )


# What changes the logits


def penalised(repetition: float, frequency: float, presence: float) -> Any:
    """Return the definitions of the three penalties: CTRL (2019) and the OpenAI reference."""

    def adjust(row: NDArray[np.float64], prompt: list[int], output: list[int]) -> NDArray[np.float64]:
        for token in {*prompt, *output}:
            row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        for token, times in Counter(output).items():
            row[token] -= frequency * times + presence
        return row

    return adjust


@pytest.mark.parametrize(
    "penalties", [(1.3, 0.0, 0.0), (1.0, 1.1, 0.0), (1.0, 0.0, 1.4), (1.1, 0.4, -0.6)], ids=str
)
def test_penalties_follow_their_definitions(
    engine: Harness, reference: Reference, penalties: tuple[float, float, float]
) -> None:
    repetition, frequency, presence = penalties
    needs(engine, "repetition_penalty", "frequency_penalty", "presence_penalty")
    for prompt in PROMPTS[:3]:
        found = engine.answer(
            prompt,
            max_tokens=STEPS,
            ignore_eos=True,
            repetition_penalty=repetition,
            frequency_penalty=frequency,
            presence_penalty=presence,
        )
        assert found.token_ids == reference.greedy(prompt, STEPS, penalised(*penalties))


def test_bias_moves_and_bans_tokens(engine: Harness, reference: Reference) -> None:
    prompt = PROMPTS[1]
    plain = reference.greedy(prompt, 8)
    bias = {plain[0]: INFINITE, plain[2]: -100.0, 77: 9.5}

    def adjust(row: NDArray[np.float64], _prompt: list[int], _output: list[int]) -> NDArray[np.float64]:
        for token, value in bias.items():
            row[token] += value
        return row

    found = engine.answer(prompt, max_tokens=STEPS, ignore_eos=True, logit_bias=bias)
    assert found.token_ids == reference.greedy(prompt, STEPS, adjust)
    forced = engine.answer(prompt, max_tokens=5, ignore_eos=True, logit_bias={5: 100.0})
    assert forced.token_ids == [5] * 5


def test_only_allowed_ids_are_drawn(engine: Harness, reference: Reference) -> None:
    allowed = frozenset({9, 40, 41, 300, 301, 302, 703})

    def adjust(row: NDArray[np.float64], _prompt: list[int], _output: list[int]) -> NDArray[np.float64]:
        banned = np.ones(len(row), bool)
        banned[sorted(allowed)] = False
        row[banned] = INFINITE
        return row

    found = engine.answer(PROMPTS[0], max_tokens=STEPS, ignore_eos=True, allowed_token_ids=allowed)
    assert found.token_ids == reference.greedy(PROMPTS[0], STEPS, adjust)
    sampled = engine.answer(
        PROMPTS[0], max_tokens=40, ignore_eos=True, allowed_token_ids=allowed, temperature=2.0, seed=3
    )
    assert set(sampled.token_ids) <= allowed


def test_bad_words_never_come(engine: Harness, reference: Reference) -> None:
    needs(engine, "bad_words")
    plain = reference.greedy(PROMPTS[0], 12)
    banned = ((plain[0],), tuple(plain[3:5]))
    found = engine.answer(PROMPTS[0], max_tokens=30, ignore_eos=True, bad_words=banned).token_ids
    assert plain[0] not in found
    pairs = list(pairwise(found))
    assert banned[1] not in pairs


def test_banned_strings_never_come(engine: Harness, reference: Reference) -> None:
    needs(engine, "banned_strings", "grammar")
    text = decode(reference.greedy(PROMPTS[0], 12))
    word = max(re.findall(r"[a-z]+", text), key=len)
    for seed in range(4):
        found = engine.answer(
            PROMPTS[0], max_tokens=40, temperature=1.0, seed=seed, banned_strings=(word, "e")
        )
        assert "e" not in decode(found.token_ids).lower()
        assert word not in decode(found.token_ids).lower()


# Ends


def test_a_stop_id_ends_the_answer_and_belongs_to_it(engine: Harness, reference: Reference) -> None:
    plain = reference.greedy(PROMPTS[2], 12)
    stop = plain[6]
    found = engine.answer(PROMPTS[2], max_tokens=12, ignore_eos=True, stop_token_ids=frozenset({stop, 1000}))
    assert found.token_ids == plain[: plain.index(stop) + 1]
    assert found.reason == "stop"


def test_no_end_comes_before_min_tokens(engine: Harness, reference: Reference) -> None:
    eos = reference.eos
    short = next(p for p in PROMPTS if len(reference.greedy(p, 30, ends=True)) < 20)
    length = len(reference.greedy(short, 30, ends=True))

    def adjust(row: NDArray[np.float64], _prompt: list[int], output: list[int]) -> NDArray[np.float64]:
        if len(output) < length + 5:
            row[eos] = INFINITE
        return row

    found = engine.answer(short, max_tokens=length + 12, min_tokens=length + 5)
    assert found.token_ids == reference.greedy(short, length + 12, adjust, ends=True)


def test_ignore_eos_goes_on_to_the_limit(engine: Harness, reference: Reference) -> None:
    short = next(p for p in PROMPTS if len(reference.greedy(p, 30, ends=True)) < 20)
    found = engine.answer(short, max_tokens=40, ignore_eos=True)
    assert reference.eos in found.token_ids[:-1]
    assert (len(found.token_ids), found.reason) == (40, "length")
    beside_stop = engine.answer(
        short, max_tokens=40, ignore_eos=True, min_tokens=10, stop_token_ids=frozenset({1000})
    )
    assert beside_stop.token_ids == found.token_ids


def test_no_tokens_can_be_asked_for(engine: Harness) -> None:
    found = engine.answer(PROMPTS[0], max_tokens=0, prompt_logprobs=1)
    assert (found.token_ids, found.reason) == ([], "length")
    assert found.chunks[0].prompt_logprobs is not None
    assert engine.answer(PROMPTS[0], max_tokens=0).token_ids == []


def test_the_context_bounds_an_answer(engine: Harness) -> None:
    limit = engine.engine.info.max_model_len
    prompt = (PROMPTS[0] * (limit // len(PROMPTS[0]) + 1))[: limit - 9]
    found = engine.answer(prompt, max_tokens=None, ignore_eos=True)
    assert (len(prompt) + len(found.token_ids), found.reason) == (limit, "length")
    with pytest.raises(RefusedRequestError):
        engine.answer((prompt * 2)[: limit + 1])


# Draws


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": 40, "top_p": 0.9, "min_p": 0.01}, {"frequency_penalty": 0.8}], ids=str
)
def test_a_seed_repeats_alone_and_beside_others(engine: Harness, sampling: dict[str, Any]) -> None:
    def request(seed: int) -> Any:
        return engine.request(PROMPTS[seed % 4], temperature=1.3, seed=seed, max_tokens=12, **sampling)

    seeds = [0, 1, 5, -3, 2**63 - 1, -(2**63)]
    alone = [engine.answers(request(seed))[0].token_ids for seed in seeds]
    beside = engine.answers(*(request(seed) for seed in seeds), *(request(seed) for seed in range(10, 20)))
    assert [answer.token_ids for answer in beside[: len(seeds)]] == alone
    assert len({tuple(tokens) for tokens in alone}) > 1


@pytest.mark.long
def test_draws_follow_the_distribution(engine: Harness, reference: Reference) -> None:
    """First tokens over many seeds, within five standard deviations."""
    number = 2000 if THOROUGH else 150
    prompt = PROMPTS[0]
    temperature = 2.0
    logits = reference.logits(prompt)[-1] / temperature
    wanted = np.exp(logits - logits.max())
    wanted /= wanted.sum()
    answers = engine_in_parts(
        engine,
        [{"temperature": temperature, "seed": seed, "max_tokens": 1} for seed in range(number)],
        prompt,
    )
    counts = Counter(answer.token_ids[0] for answer in answers)
    for token in np.argsort(wanted)[::-1][:10]:
        share = wanted[token]
        assert abs(counts[int(token)] - number * share) <= 5 * np.sqrt(number * share * (1 - share)) + 1


def engine_in_parts(engine: Harness, samplings: list[dict[str, Any]], prompt: list[int]) -> list[Answer]:
    """Answer many requests, no more at a time than the engine takes."""
    found: list[Answer] = []
    for start in range(0, len(samplings), engine.kind.num_places):
        part = samplings[start : start + engine.kind.num_places]
        found += engine.answers(*(engine.request(prompt, **sampling) for sampling in part))
    return found


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}], ids=str)
def test_filters_leave_what_their_definitions_leave(
    engine: Harness, reference: Reference, filters: dict[str, Any]
) -> None:
    prompt, temperature = PROMPTS[0], 1.5
    logits = reference.logits(prompt)[-1] / temperature
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    order = np.argsort(shares)[::-1]
    before = np.cumsum(shares[order]) - shares[order]
    if "top_k" in filters:
        left = order[: filters["top_k"]]
    elif "top_p" in filters:
        left = order[before < filters["top_p"]]
    else:
        left = order[shares[order] >= filters["min_p"] * shares.max()]
    samplings = [{"temperature": temperature, "seed": seed, "max_tokens": 1, **filters} for seed in range(64)]
    found = {answer.token_ids[0] for answer in engine_in_parts(engine, samplings, prompt)}
    assert found <= {int(token) for token in left}


# Grammars and thinking budgets


def test_answers_under_a_grammar_are_in_it(engine: Harness) -> None:
    """Those of the study greedily, and drawn ones at a temperature that would leave them at once."""
    needs(engine, "grammar")
    tried = [(grammar, pattern, 0.0) for grammar, pattern in STUDY]
    rng = random.Random(5)
    tried += [(*drawn(rng), 1.6) for _ in range(NUM_GRAMMARS)]
    requests = [
        engine.request(
            PROMPTS[index % 20],
            grammar=grammar,
            temperature=temperature,
            seed=index,
            max_tokens=400,
            min_tokens=3,
        )
        for index, (grammar, _, temperature) in enumerate(tried)
    ]
    places = engine.kind.num_places
    found = [
        answer
        for start in range(0, len(requests), places)
        for answer in engine.answers(*requests[start : start + places])
    ]
    for (grammar, pattern, _), answer in zip(tried, found, strict=True):
        assert answer.reason == "stop", (grammar, answer.chunks[-1])
        assert re.fullmatch(pattern, decode(answer.token_ids), re.DOTALL), grammar


def test_a_grammar_that_does_not_compile_is_refused(engine: Harness) -> None:
    needs(engine, "grammar")
    with pytest.raises(RefusedRequestError):
        engine.run(engine.engine.check_grammar("start: unknown_rule"))
    with pytest.raises(RefusedRequestError):
        engine.answer(PROMPTS[0], grammar="start: (")
    assert engine.answer(PROMPTS[0]).reason in ("stop", "length")


@pytest.mark.parametrize("limit", [0, 3, 10])
def test_a_thinking_budget_forces_the_end(engine: Harness, limit: int) -> None:
    needs(engine, "thinking_budget")
    begin, end = token_id("<think>"), token_id("</think>")
    prompt = encode([{"role": "user", "content": "What is 58 plus 67?"}], thinking=True)
    budget = ThinkingBudget(max_tokens=limit, begin=((begin,),), end=(end,))
    free = engine.answer(prompt, max_tokens=120).token_ids
    assert free.index(end) - free.index(begin) - 1 > 10, "the model thinks longer if it may"
    found = engine.answer(prompt, max_tokens=120, thinking_budget=budget).token_ids
    assert found.index(end) - found.index(begin) - 1 == limit
    assert found[: found.index(end)] == free[: found.index(end)]
    if "grammar" in engine.features:
        grammar = 'start: "<think>" /[^<]*/ "</think>" "done"'
        beside = engine.answer(prompt, max_tokens=120, thinking_budget=budget, grammar=grammar).token_ids
        assert beside.index(end) - beside.index(begin) - 1 <= limit
        assert decode(beside[beside.index(end) + 1 :]) == "done"


# Aborts, order and bounds


def test_an_abort_at_any_moment_leaves_nothing(engine: Harness, reference: Reference) -> None:
    async def scenario() -> None:
        for after in range(6):
            request = engine.request(PROMPTS[after], max_tokens=None, ignore_eos=True)
            other = asyncio.ensure_future(
                engine.collect(engine.request(PROMPTS[7], max_tokens=20, ignore_eos=True))
            )
            stream = engine.stream(request)
            for _ in range(after):
                await anext(stream)
            if after == 0:
                first = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                engine.engine.abort(request.request_id)
                chunk = await first
                rest = [chunk] + [chunk async for chunk in stream]
            else:
                engine.engine.abort(request.request_id)
                rest = [chunk async for chunk in stream]
            assert rest[-1].finish_reason == "abort"
            assert (await other).token_ids == undisturbed
            await engine.idle()

    undisturbed = reference.greedy(PROMPTS[7], 20)
    engine.run(scenario())
    engine.engine.abort("unknown")


def test_closing_and_cancelling_a_stream_end_its_request(engine: Harness) -> None:
    async def scenario() -> None:
        stream = engine.stream(engine.request(PROMPTS[0], max_tokens=None, ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        await engine.idle()
        task = asyncio.ensure_future(
            engine.collect(engine.request(PROMPTS[0], max_tokens=None, ignore_eos=True))
        )
        while not engine.stats().num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.idle()

    engine.run(scenario())


def test_of_waiting_requests_the_lowest_priority_number_runs_first(engine: Harness) -> None:
    """All places are taken; of those that wait, the urgent ones begin before the others."""
    begun: list[int] = []

    async def one(priority: int) -> None:
        request = engine.request(PROMPTS[1], priority=priority, max_tokens=4, ignore_eos=True)
        async for chunk in engine.stream(request):
            if chunk.token_ids and priority not in begun:
                begun.append(priority)

    async def scenario() -> None:
        fillers = [
            engine.request(PROMPTS[0], max_tokens=60 + 4 * index, ignore_eos=True)
            for index in range(engine.kind.num_places)
        ]
        busy = [asyncio.ensure_future(engine.collect(request)) for request in fillers]
        while engine.stats().num_running < engine.kind.num_places:
            await asyncio.sleep(0.001)
        await asyncio.gather(*(one(priority) for priority in (9, 5, 2)))
        await asyncio.gather(*busy)

    engine.run(scenario())
    assert begun == [2, 5, 9]


def test_a_full_queue_is_refused_and_recovers(engine: Harness) -> None:
    async def scenario() -> None:
        limit = engine.kind.num_places + NUM_WAITING
        streams = [
            engine.stream(engine.request(PROMPTS[0], max_tokens=None, ignore_eos=True)) for _ in range(limit)
        ]
        first = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.05)
        with pytest.raises(EngineFullError) as refusal:
            await engine.collect(engine.request(PROMPTS[0]))
        assert refusal.value.retry_after >= 1
        for task in first:
            task.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
        await engine.idle()
        assert (await engine.collect(engine.request(PROMPTS[0]))).reason == "stop"

    engine.run(scenario())


def test_prefixes_are_shared_within_a_salt(engine: Harness) -> None:
    if not engine.kind.shares_prefixes:
        pytest.skip(f"{engine.kind.name} keeps no prefixes")
    prompt = [*PROMPTS[3], *PROMPTS[8], *PROMPTS[13]]
    first, again = (engine.answers(engine.request(prompt, salt="a"))[0] for _ in range(2))
    other = engine.answers(engine.request(prompt, salt="b"))[0]
    assert first.chunks[0].num_cached_tokens == 0
    assert all(found.chunks[0].queued_seconds > 0 for found in (first, again, other))
    assert len(prompt) > again.chunks[0].num_cached_tokens > len(prompt) // 2
    assert other.chunks[0].num_cached_tokens == 0
    assert first.token_ids == again.token_ids == other.token_ids


# Refusals and facts


SAMPLED: dict[str, Any] = {
    "allowed_token_ids": {"allowed_token_ids": frozenset({5, 6})},
    "bad_words": {"bad_words": ((5,),)},
    "banned_strings": {"banned_strings": ("zebra",)},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "grammar": {"grammar": 'start: "a"'},
    "ignore_eos": {"ignore_eos": True},
    "logit_bias": {"logit_bias": {5: 1.0}},
    "logprob_token_ids": {"logprobs": 1, "logprob_token_ids": (5,)},
    "logprobs": {"logprobs": 1},
    "min_p": {"min_p": 0.1},
    "min_tokens": {"min_tokens": 2},
    "presence_penalty": {"presence_penalty": 0.5},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "stop_token_ids": {"stop_token_ids": frozenset({5})},
    "thinking_budget": {"thinking_budget": ThinkingBudget(max_tokens=3, begin=((5,),), end=(6,))},
    "top_k": {"top_k": 5},
    "dry_multiplier": {"chain": SamplerChain(dry=Dry(multiplier=0.8))},
    "dynatemp_range": {"chain": SamplerChain(dynatemp_range=0.5)},
    "mirostat": {"chain": SamplerChain(mirostat=Mirostat(version=2))},
    "repeat_last_n": {"chain": SamplerChain(repeat_last_n=5), "repetition_penalty": 1.1},
    "samplers": {"chain": SamplerChain(order=SAMPLER_ORDER[::-1])},
    "tfs": {"chain": SamplerChain(tfs=0.5)},
    "top_a": {"chain": SamplerChain(top_a=0.5)},
    "top_n_sigma": {"chain": SamplerChain(top_n_sigma=1.0)},
    "typical_p": {"chain": SamplerChain(typical_p=0.5)},
    "xtc_probability": {"chain": SamplerChain(xtc_probability=0.5)},
}
"""A request for each feature."""


def test_an_engine_declares_what_the_documentation_says(engine: Harness) -> None:
    ours = dict.fromkeys(("native", "native_adapter", "remote"), "plumbline")
    name = (ours | {"llama_cpp_pool": "llama_cpp"}).get(engine.kind.name, engine.kind.name)
    more = frozenset() if engine.adapter is None else frozenset({"adapters"})
    assert engine.features == DECLARED[name] | more


def test_the_adapter_of_all_requests_changes_what_is_computed(engine: Harness, reference: Reference) -> None:
    """Otherwise the other laws would say nothing about it."""
    if engine.adapter is None:
        pytest.skip("requests have no adapter")
    logits = [found.logits(PROMPTS[0]) for found in (reference, reference_of(None))]
    assert np.abs(logits[0] - logits[1]).max() > 0.1


def test_each_feature_is_tried() -> None:
    assert SAMPLED.keys() == frozenset[str]().union(*DECLARED.values())


def test_the_documentation_has_the_table_of_features() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "engines.md").read_text("utf-8")
    assert "\n".join(feature_table()) in page


@pytest.mark.parametrize("feature", SAMPLED)
def test_a_feature_is_honoured_or_refused_by_name(engine: Harness, feature: str) -> None:
    wanted = engine.request(PROMPTS[0], max_tokens=3, temperature=1.0, seed=1, **SAMPLED[feature])
    if feature in engine.features:
        assert engine.answers(wanted)[0].reason in ("stop", "length")
        return
    with pytest.raises(RefusedRequestError) as refusal:
        engine.answers(wanted)
    assert refusal.value.param == feature


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([], {}),
        ([10**9], {}),
        ([-1], {}),
        ([5], {"logit_bias": {10**9: 1.0}}),
        ([5], {"allowed_token_ids": frozenset()}),
        ([5], {"allowed_token_ids": frozenset({10**9})}),
    ],
    ids=str,
)
def test_what_cannot_be_computed_is_refused(
    engine: Harness, prompt: list[int], sampling: dict[str, Any]
) -> None:
    with pytest.raises(RefusedRequestError):
        engine.answer(prompt, **sampling)
    assert engine.answer(PROMPTS[0]).reason == "stop"


def test_stats_count_what_was_done(engine: Harness) -> None:
    before = engine.stats()
    found = engine.answer(PROMPTS[0], max_tokens=15, ignore_eos=True)
    engine.run(engine.idle())
    after = engine.stats()
    assert after.alive
    assert after.generation_tokens - before.generation_tokens == len(found.token_ids) == 15
    assert after.prompt_tokens - before.prompt_tokens == len(PROMPTS[0])
    assert after.num_running == after.num_waiting == 0
    assert 0 <= after.kv_cache_usage <= 1
