"""Answers over HTTP: both modes, choices, logprobs, stop strings, biases (CHAT-*, CMP-*, LP-*, RS-*)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.judges import (
    as_folded,
    check_response,
    check_text_logprobs,
    fold_chunks,
    fold_response,
    fold_texts,
    without_names,
    without_nulls,
)
from support.models import (
    TOKENIZER,
    answer_with,
    scripted,
    served,
    token_chunks,
)
from support.servers.api_calls import (
    GREEDY,
    SEEDED,
    USER,
    Json,
    chat,
    complete,
    native_server,
    respond,
    streamed,
)
from support.servers.asgi import serving

# Stream and whole


@pytest.mark.parametrize("options", [GREEDY, SEEDED, {**SEEDED, "stop": ["e", "\x00"]}, {**SEEDED, "n": 3}])
@pytest.mark.parametrize("logprobs", [{}, {"logprobs": True, "top_logprobs": 3}])
async def test_a_chat_is_streamed_as_it_is_answered(options: Json, logprobs: Json) -> None:
    """CHAT-19, CHAT-11: content, finish reason, logprobs and usage."""
    options = {**options, **logprobs, "max_completion_tokens": 24}
    async with native_server() as server:
        whole = await chat(server, **options)
        body = {"messages": USER, "stream_options": {"include_usage": True}, **options}
        chunks = await streamed(server, "/v1/chat/completions", body)
        folded = fold_chunks(chunks, n=options.get("n", 1), usage=True, logprobs=bool(logprobs))

        assert folded["choices"] == [as_folded(choice) for choice in whole["choices"]]
        # The second request finds the first one's prompt in the cache.
        for usage in (folded["usage"], whole["usage"]):
            usage.pop("prompt_tokens_details")
        assert folded["usage"] == whole["usage"]
        assert whole["system_fingerprint"] == "fp_test"


@pytest.mark.parametrize(
    "options", [GREEDY, SEEDED, {**SEEDED, "n": 2, "stop": "o"}, {**SEEDED, "echo": True}]
)
@pytest.mark.parametrize("logprobs", [{}, {"logprobs": 2}])
@pytest.mark.parametrize("prompt", ["hello", ["hello", "€ world"], [[104, 260], [33]]])
async def test_a_completion_is_streamed_as_it_is_answered(options: Json, logprobs: Json, prompt: Any) -> None:
    """CHAT-19, CMP-08, CMP-09."""
    options = {**options, **logprobs, "prompt": prompt, "max_tokens": 12}
    n = options.get("n", 1) * (len(prompt) if isinstance(prompt, list) else 1)
    async with native_server() as server:
        whole = await complete(server, **options)
        chunks = await streamed(
            server, "/v1/completions", {**options, "stream_options": {"include_usage": True}}
        )
        folded = fold_texts(chunks, n=n, usage=True)

        assert [*map(without_nulls, folded["choices"])] == [*map(without_nulls, whole["choices"])]
        for choice in whole["choices"]:
            assert (choice["logprobs"] is not None) == bool(logprobs)
            if choice["logprobs"]:
                check_text_logprobs(choice["text"], choice["logprobs"])


@pytest.mark.parametrize("options", [GREEDY, SEEDED, {**SEEDED, "stop": ["e"]}])
@pytest.mark.parametrize("logprobs", [{}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}])
async def test_a_response_is_streamed_as_it_is_answered(options: Json, logprobs: Json) -> None:
    """RS-16, LP-06."""
    options = {**options, **logprobs, "max_output_tokens": 24}
    async with native_server() as server:
        await respond(server, **options)  # From here on the prompt is cached for both.
        whole = await respond(server, **options)
        final = fold_response(await streamed(server, "/v1/responses", {"input": "hello world", **options}))
        (part,) = whole["output"][0]["content"]

        assert without_names(final) == without_names(whole)
        assert bool(part["logprobs"]) == bool(logprobs)
        if not options.get("stop"):
            assert whole["status"] == "incomplete"
            assert whole["usage"]["output_tokens"] == 24


async def test_all_three_surfaces_agree_about_the_same_conversation() -> None:
    """R-12, R-15: the same prompt, the same text."""
    async with native_server() as server:
        by_chat = await chat(server, max_completion_tokens=20, **GREEDY)
        by_response = await respond(server, max_output_tokens=20, **GREEDY)
        tokens = (await server.post("/tokenize", {"messages": USER})).json["tokens"]
        by_completion = await complete(server, prompt=tokens, max_tokens=20, **GREEDY)
        text = by_chat["choices"][0]["message"]["content"]

        assert text == by_response["output"][0]["content"][0]["text"] == by_completion["choices"][0]["text"]
        assert by_completion["usage"]["prompt_tokens"] == len(tokens) == by_response["usage"]["input_tokens"]


# Choices


async def test_every_choice_is_there_and_drawn_by_itself() -> None:
    """CHAT-02, CHAT-09, CHAT-11: with a seed the choices differ from each other and repeat as a whole."""
    async with native_server() as server:
        first, second = [await chat(server, n=4, max_completion_tokens=16, **SEEDED) for _ in range(2)]
        contents = [choice["message"]["content"] for choice in first["choices"]]

        assert [choice["index"] for choice in first["choices"]] == [0, 1, 2, 3]
        assert len(set(contents)) == 4
        assert contents == [choice["message"]["content"] for choice in second["choices"]]
        single = await chat(server, max_completion_tokens=16, **SEEDED)
        assert single["choices"][0]["message"]["content"] == contents[0]
        assert first["usage"]["completion_tokens"] == 64
        assert first["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
async def test_every_seed_is_a_seed(seed: int) -> None:
    async with native_server() as server:
        options = {"seed": seed, "n": 2, "max_completion_tokens": 8}
        first, second = [await chat(server, **options) for _ in range(2)]

        assert first["choices"] == second["choices"]


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt() -> None:
    """CMP-02."""
    async with serving(served(scripted())) as server:
        whole = await complete(server, prompt=["a", "b", "c"], n=2)

        assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [
            (0, " and a"), (1, " and a"), (2, " and b"), (3, " and b"), (4, " and c"), (5, " and c"),
        ]  # fmt: skip
        assert whole["usage"]["prompt_tokens"] == 3
        each = [len(TOKENIZER.encode_text(f" and {letter}")) + 1 for letter in "abc"]
        assert whole["usage"]["completion_tokens"] == 2 * sum(each)


async def test_the_best_are_returned_and_all_are_counted() -> None:
    """CMP-06: by mean logprob."""
    async with native_server() as server:
        options = {"max_tokens": 6, **SEEDED}
        candidates = (await complete(server, n=6, logprobs=0, **options))["choices"]
        best = await complete(server, best_of=6, n=2, **options)

        def score(choice: Json) -> float:
            values = choice["logprobs"]["token_logprobs"]
            return float(sum(values) / len(values))

        expected = sorted(candidates, key=score, reverse=True)[:2]
        assert [choice["text"] for choice in best["choices"]] == [choice["text"] for choice in expected]
        assert [choice["index"] for choice in best["choices"]] == [0, 1]
        assert all(choice["logprobs"] is None for choice in best["choices"])
        assert best["usage"]["completion_tokens"] == 36


# Ends


async def test_the_finish_reason_is_right() -> None:
    """CHAT-04 to CHAT-06, R-05."""
    async with serving(served(scripted(answer_with("one two three")))) as server:
        whole = await chat(server)
        assert whole["choices"][0]["finish_reason"] == "stop"
        tokens = whole["usage"]["completion_tokens"]
        assert tokens == len(TOKENIZER.encode_text("one two three")) + 1

        cut = await chat(server, max_completion_tokens=5)
        assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 5)

        response = await respond(server)
        check_response(response)
        assert response["status"] == "completed"


async def test_zero_tokens_are_no_tokens() -> None:
    """CMP-03: allowed, and with `echo` it returns just the prompt."""
    async with native_server() as server:
        for stream in (False, True):
            body = {"prompt": "hello €", "max_tokens": 0, "echo": True, "logprobs": 1}
            if stream:
                whole = fold_texts(await streamed(server, "/v1/completions", body))
            else:
                whole = await complete(server, **body)
                assert whole["usage"]["completion_tokens"] == 0
            (choice,) = whole["choices"]
            assert (choice["text"], choice["finish_reason"]) == ("hello €", "length")
            assert len(choice["logprobs"]["tokens"]) == len(TOKENIZER.encode_text("hello €"))


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("two", "one ", "two"),
        (["three", "ne"], "o", "ne"),
        (["wo thr"], "one t", "wo thr"),
        ("absent", "one two three", None),
        (["e", "one"], "", "one"),
        ("e", "on", "e"),
    ],
)
async def test_a_stop_string_ends_the_answer_and_is_not_in_it(
    stop: Any, text: str, reason: str | None
) -> None:
    """CHAT-10, CS-15, CMP-09: on all surfaces, streaming or not."""
    async with serving(served(scripted(answer_with("one two three")))) as server:
        whole = (await chat(server, stop=stop))["choices"][0]
        assert (whole["message"]["content"], whole["finish_reason"]) == (text, "stop")
        assert whole.get("stop_reason") == reason
        chunks = await streamed(server, "/v1/chat/completions", {"messages": USER, "stop": stop})
        assert fold_chunks(chunks)["choices"] == [as_folded(whole)]
        assert (await complete(server, stop=stop, max_tokens=50))["choices"][0]["text"] == text
        response = await respond(server, stop=stop)
        assert response["output"][0]["content"][0]["text"] == text
        assert response["status"] == "completed"


async def test_a_stop_string_can_be_kept() -> None:
    async with serving(served(scripted(answer_with("one two three")))) as server:
        whole = (await chat(server, stop="two", include_stop_str_in_output=True))["choices"][0]

        assert (whole["message"]["content"], whole["stop_reason"]) == ("one two", "two")


async def test_a_stop_string_ends_the_work_of_the_engine() -> None:
    """CHAT-10: generation ends at the match; what comes after it is neither made nor counted."""
    engine = scripted(answer_with("one two three four five six"))
    async with serving(served(engine)) as server:
        whole = await chat(server, stop=" two")

        assert whole["usage"]["completion_tokens"] == len(TOKENIZER.encode_text("one two"))
        assert len(engine.aborted) == 1
        assert engine.stats().num_running == 0


async def test_a_stop_token_is_named() -> None:
    token = TOKENIZER.encode_text("w")[0]
    async with native_server() as server:
        options = {"logit_bias": {str(token): 100}, "stop_token_ids": [token], **GREEDY}
        whole = (await chat(server, **options))["choices"][0]

        assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", token)


async def test_control_tokens_are_shown_only_on_request() -> None:
    start = TOKENIZER.added["<|im_start|>"]
    async with serving(served(scripted(lambda request: token_chunks(request, [start, 65])))) as server:
        hidden = (await chat(server))["choices"][0]["message"]["content"]
        shown = (await chat(server, skip_special_tokens=False))["choices"][0]["message"]["content"]

        assert shown == f"<|im_start|>{hidden}"
        assert "<|im_end|>" not in shown


# Biases


async def test_a_bias_forces_and_bans() -> None:
    """CHAT-12."""
    token = TOKENIZER.encode_text("w")[0]
    async with native_server() as server:
        forced = await chat(server, logit_bias={str(token): 100}, max_completion_tokens=5, **GREEDY)
        assert forced["choices"][0]["message"]["content"] == "wwwww"
        free = await complete(server, prompt=[104], max_tokens=1, logprobs=0, **GREEDY)
        drawn = free["choices"][0]["logprobs"]["tokens"][0]
        banned = TOKENIZER.encode_text(drawn)
        if len(banned) == 1:
            other = await complete(
                server, prompt=[104], max_tokens=1, logit_bias={str(banned[0]): -100}, **GREEDY
            )
            assert other["choices"][0]["text"] != free["choices"][0]["text"]
        # Banning every token but one is the same as forcing it.
        everything = {str(i): -100 for i in range(TOKENIZER.vocab_size) if i != token}
        only = await chat(server, logit_bias=everything, max_completion_tokens=3, temperature=1.0)
        assert only["choices"][0]["message"]["content"] == "www"


async def test_a_huge_top_k_hurts_nobody() -> None:
    """What one request asks for must not fail the step of all."""
    async with native_server() as server:
        answers = await asyncio.gather(
            chat(server, top_k=10**18, max_completion_tokens=4), chat(server, max_completion_tokens=4)
        )
        assert all(answer["choices"][0]["finish_reason"] for answer in answers)


async def test_cached_tokens_are_reported() -> None:
    """CHAT-08, R-10: cached <= prompt."""
    async with native_server() as server:
        long = [{"role": "user", "content": "hello world " * 20}]
        first = (await chat(server, messages=long, max_completion_tokens=2))["usage"]
        second = (await chat(server, messages=long, max_completion_tokens=2))["usage"]
        salted = (await chat(server, messages=long, max_completion_tokens=2, cache_salt="other"))["usage"]

        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        assert 0 < second["prompt_tokens_details"]["cached_tokens"] <= second["prompt_tokens"]
        assert salted["prompt_tokens_details"]["cached_tokens"] == 0


async def test_salt_and_extra_key_both_keep_prefixes_apart() -> None:
    """SGLang's `extra_key` separates in addition to `cache_salt`, and no two pairs of them are the same."""
    keys = [
        {},
        {"cache_salt": "a"},
        {"extra_key": "a"},
        {"cache_salt": "a", "extra_key": "b"},
        {"cache_salt": "ab", "extra_key": "b"},
        {"cache_salt": "a", "extra_key": "bb"},
    ]
    async with native_server() as server:
        long = [{"role": "user", "content": "hello world " * 20}]
        for cached in (False, True):
            for fields in keys:
                usage = (await chat(server, messages=long, max_completion_tokens=2, **fields))["usage"]
                assert bool(usage["prompt_tokens_details"]["cached_tokens"]) == cached, fields


async def test_tools_and_results_reach_the_model() -> None:
    """TOOL-10: call, output, final answer, by both surfaces and with the same prompt."""
    prompts: list[str] = []

    def watching(request: Any) -> Any:
        prompts.append(TOKENIZER.decode(request.prompt_token_ids))
        return answer_with("It is sunny.")(request)

    function = {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}}
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Graz"}'}}
    async with serving(served(scripted(watching))) as server:
        await chat(
            server,
            tools=[{"type": "function", "function": function}],
            messages=[
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "Sunny."},
            ],
        )
        await respond(
            server,
            tools=[{"type": "function", **function, "strict": None}],
            input=[
                {"role": "user", "content": "Weather?"},
                {
                    "type": "function_call",
                    "call_id": "c1",
                    "name": "weather",
                    "arguments": '{"city": "Graz"}',
                },
                {"type": "function_call_output", "call_id": "c1", "output": "Sunny."},
            ],
        )

        assert prompts[0] == prompts[1]
        assert '<tool_call>{"name": "weather", "arguments": {"city": "Graz"}}</tool_call>' in prompts[0]
        assert "<|im_start|>tool\nSunny.<|im_end|>" in prompts[0]
