"""Fields that change the end of a prompt or the text of an answer, over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from support.judges import as_folded, fold_chunks
from support.models import CHATML, TOKENIZER, answer_with, chatml, scripted, served, text_chunks, token_chunks
from support.servers.asgi import Server, serving

from plumbline.port.engine import GenerateRequest, TokenChunk

Json = dict[str, Any]
USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "Once upon"}


def read_back(request: GenerateRequest) -> Iterable[TokenChunk]:
    """Answer with the prompt, without its control tokens."""
    return text_chunks(
        request, TOKENIZER.decode([i for i in request.prompt_token_ids if i not in TOKENIZER.special_ids])
    )


async def chat(server: Server, *messages: Json, **options: Any) -> Json:
    body = {"model": "test-model", "messages": messages or [USER], **options}
    answer = await server.post("/v1/chat/completions", body)
    assert answer.status == 200, answer.body
    choice: Json = answer.json["choices"][0]
    streamed = await server.post("/v1/chat/completions", {**body, "stream": True})
    chunks = [event.json for event in streamed.events[:-1]]
    assert fold_chunks(chunks, n=1)["choices"] == [as_folded(choice)], "CHAT-19"
    return choice


async def refusal(server: Server, path: str = "/v1/chat/completions", **body: Any) -> tuple[int, str, str]:
    answer = await server.post(path, {"model": "test-model", "messages": [USER], **body})
    error = answer.json["error"]
    return answer.status, error["param"], error["code"]


async def test_a_prefix_begins_the_answer_and_is_not_repeated() -> None:
    async with serving(served(scripted(read_back))) as server:
        choice = await chat(server, response_prefix="Sure: ")
        same = await chat(
            server, USER, {"role": "assistant", "content": "Sure: "}, continue_final_message=True
        )

        assert choice["message"]["content"] == "user\nhi\nassistant\nSure: "
        assert choice == same


@pytest.mark.parametrize("options", [{"response_prefix": "Once upon"}, {"continue_final_message": True}])
async def test_an_echo_begins_with_what_is_continued(options: Json) -> None:
    messages = [USER] if "response_prefix" in options else [USER, ASSISTANT]
    async with serving(served(scripted(answer_with(" a time")))) as server:
        without = await chat(server, *messages, **options)
        choice = await chat(server, *messages, **options, echo=True)
        both = await server.post(
            "/v1/chat/completions",
            {"model": "test-model", "messages": messages, **options, "echo": True, "n": 2},
        )

        assert without["message"]["content"] == " a time"
        assert choice["message"]["content"] == "Once upon a time"
        assert [c["message"]["content"] for c in both.json["choices"]] == ["Once upon a time"] * 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {"response_prefix": "a", "continue_final_message": True, "messages": [USER, ASSISTANT]},
            "response_prefix",
        ),
        ({"response_prefix": "a", "add_generation_prompt": False}, "response_prefix"),
        ({"echo": True}, "echo"),
        ({"echo": True, "continue_final_message": True}, "echo"),
        ({"echo": True, "response_prefix": "a", "logprobs": True}, "echo"),
        ({"documents": [{"text": "d"}]}, "documents"),
        ({"chat_template_kwargs": {"documents": []}}, "chat_template_kwargs.documents"),
    ],
)
async def test_what_contradicts_itself_or_would_be_passed_over_is_refused(body: Json, param: str) -> None:
    async with serving(served(scripted())) as server:
        status, found, _ = await refusal(server, **body)

        assert (status, found) == (400, param)


async def test_documents_reach_a_template_that_reads_them_as_text() -> None:
    source = "{% for d in documents or [] %}[{{ d.title }}|{{ d.text }}]{% endfor %}" + CHATML
    async with serving(served(scripted(read_back), renderer=chatml(source))) as server:
        documents = [{"title": "t", "text": "a<|im_end|>b"}, {"title": "u", "text": "c"}]
        choice = await chat(server, documents=documents)

        assert choice["message"]["content"] == "[t|a<|im_end|>b][u|c]user\nhi\nassistant\n"


async def test_parts_reach_a_template_that_reads_parts() -> None:
    source = "{% for m in messages %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    async with serving(served(scripted(read_back), renderer=chatml(source))) as server:
        choice = await chat(server, {"role": "user", "content": parts}, {"role": "user", "content": "c"})
        response = await server.post(
            "/v1/responses",
            {"model": "test-model", "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
                {"role": "user", "content": "c"},
            ]},
        )  # fmt: skip

        assert choice["message"]["content"] == "<a><b><c>"
        assert response.json["output"][0]["content"][0]["text"] == "<a><b><c>"


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "a "), (1, "a "), (3, "a b a "), (99, "a b a b")])
async def test_a_stop_string_waits_for_min_tokens(min_tokens: int, text: str) -> None:
    """On all surfaces: as vLLM reads the field, a stop string counts once a later token completes it."""
    ids = [TOKENIZER.encode_text(word)[0] for word in ("a", " ", "b", " ", "a", " ", "b")]
    limits = {"min_tokens": min_tokens, "stop": "b"}
    async with serving(served(scripted(lambda request: token_chunks(request, ids)))) as server:
        choice = await chat(server, **limits)
        completion = await server.post(
            "/v1/completions", {"model": "test-model", "prompt": "x", "max_tokens": 99, **limits}
        )
        response = await server.post("/v1/responses", {"model": "test-model", "input": "x", **limits})

        assert choice["message"]["content"] == text
        assert completion.json["choices"][0]["text"] == text
        assert response.json["output"][0]["content"][0]["text"] == text


@pytest.mark.parametrize(("kept", "text"), [(False, "ab"), (True, "abc")])
async def test_a_stop_token_is_text_only_where_stop_strings_are_kept(kept: bool, text: str) -> None:
    """CHAT-10: it counts, but the answer does not show it."""
    a, b, c = (TOKENIZER.encode_text(char)[0] for char in "abc")

    def script(request: GenerateRequest) -> Iterable[TokenChunk]:
        yield TokenChunk(token_ids=(a, b))
        yield TokenChunk(token_ids=(c,), finish_reason="stop")

    body = {"stop_token_ids": [c], "include_stop_str_in_output": kept}
    async with serving(served(scripted(script))) as server:
        choice = await chat(server, **body)
        answer = await server.post("/v1/completions", {"model": "test-model", "prompt": "x", **body})
        response = await server.post("/v1/responses", {"model": "test-model", "input": "x", **body})

        assert (choice["message"]["content"], choice["stop_reason"]) == (text, c)
        assert response.json["output"][0]["content"][0]["text"] == text
        assert answer.json["choices"][0]["text"] == text
        assert answer.json["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("skip", [True, False])
async def test_an_end_of_sequence_that_ends_nothing_is_a_special_token_like_others(skip: bool) -> None:
    """`ignore_eos`: left out of the text, and shown to who asks for special tokens."""
    end = TOKENIZER.added["<|im_end|>"]
    a = TOKENIZER.encode_text("a")[0]

    def script(request: GenerateRequest) -> Iterable[TokenChunk]:
        yield TokenChunk(token_ids=(a, end, a), finish_reason="length")

    async with serving(served(scripted(script))) as server:
        choice = await chat(server, ignore_eos=True, max_tokens=3, skip_special_tokens=skip)

        assert choice["message"]["content"] == ("aa" if skip else "a<|im_end|>a")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize(("stop", "param"), [("x" * 1_000_000, "stop"), (["a", "x" * 4097], "stop[1]")])
async def test_a_stop_string_beyond_the_limit_is_refused_by_name(path: str, stop: Any, param: str) -> None:
    prompts = {"/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi"}}
    async with serving(served(scripted(answer_with("hi")))) as server:
        body = {"model": "test-model", **prompts.get(path, {"messages": [USER]}), "stop": stop}
        answer = await server.post(path, body)

        error = answer.json["error"]
        assert (answer.status, error["param"]) == (400, param)
        assert error["code"] == "string_above_max_length"
