"""The official Python client against a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import httpx2
import openai
import pydantic
import pytest
from support.models import GatedEngine, until
from support.servers.live import Live

KEY = "test-key"
USER: Any = [{"role": "user", "content": "hello €"}]


@pytest.fixture(scope="module")
def client(echoing: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{echoing.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def ours(thinking: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{thinking.url}/v1", api_key="-", max_retries=0) as client:
        yield client


def eventually(condition: Callable[[], object]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_chat_completions(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="test-model", messages=USER, n=2)

    assert [choice.message.content for choice in answer.choices] == ["You said: hello €"] * 2
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


def test_streamed_chat_completions(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="test-model", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "You said: hello €"
    assert chunks[-1].usage is not None


@pytest.mark.parametrize("n", [1, 3])
def test_the_chat_stream_helper(client: openai.OpenAI, n: int) -> None:
    """CS-02, CS-04, CS-08 are what it trips over."""
    with client.chat.completions.stream(
        model="test-model",
        messages=USER,
        n=n,
        logprobs=True,
        top_logprobs=2,
        stream_options={"include_usage": True},
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()

    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    assert [choice.message.content for choice in final.choices] == ["You said: hello €"] * n
    assert final.usage is not None
    content = final.choices[0].logprobs
    assert content is not None
    assert (
        b"".join(bytes(entry.bytes or []) for entry in content.content or []) == "You said: hello €".encode()
    )


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="test-model", prompt=["a", "b"], echo=True, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["a and a", "b and b"]
    stream = client.completions.create(model="test-model", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == " and a"


def test_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="test-model", input="hello €", instructions="Be brief.")

    assert answer.output_text == "You said: hello €"
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.instructions == "Be brief."


def test_streamed_responses(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="test-model", input="hello €", stream=True))

    assert [events[0].type, events[1].type, events[-1].type] == [
        "response.created", "response.in_progress", "response.completed",
    ]  # fmt: skip
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "You said: hello €"


def test_the_responses_stream_helper(client: openai.OpenAI) -> None:
    """RS-01, RS-03, RS-05, RS-06, RS-14 are what it trips over."""
    with client.responses.stream(model="test-model", input="hello €") as stream:
        texts = [event.text for event in stream if event.type == "response.output_text.done"]
        final = stream.get_final_response()

    assert texts == [final.output_text] == ["You said: hello €"]
    replayed: Any = [*USER, *[item.model_dump(exclude_none=True) for item in final.output], *USER]
    again = client.responses.create(model="test-model", input=replayed)
    assert again.output_text == "You said: hello €"


def test_input_tokens(client: openai.OpenAI) -> None:
    """R-15."""
    counted = client.responses.input_tokens.count(model="test-model", input="hello €")
    answer = client.responses.create(model="test-model", input="hello €")

    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens


def test_models(client: openai.OpenAI) -> None:
    """MOD-01, MOD-02: also with a slash in the id, as this client encodes it."""
    assert [model.id for model in client.models.list()] == ["test-model", "org/alias"]
    assert client.models.retrieve("org/alias").id == "org/alias"


def test_our_engine_through_the_helpers(ours: openai.OpenAI) -> None:
    with ours.chat.completions.stream(
        model="test-model", messages=USER, seed=3, stop=["\n"], extra_body={"ignore_eos": False, "top_k": 50}
    ) as stream:
        first = stream.until_done().get_final_completion()
    second = ours.chat.completions.create(
        model="test-model", messages=USER, seed=3, stop=["\n"], extra_body={"top_k": 50}
    )

    assert first.choices[0].message.content == second.choices[0].message.content


def test_a_response_that_the_limit_cuts_is_incomplete(ours: openai.OpenAI) -> None:
    """R-05."""
    answer = ours.responses.create(
        model="test-model", input="hi", max_output_tokens=16, extra_body={"ignore_eos": True}
    )

    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_failures_are_the_right_classes(client: openai.OpenAI, echoing: Live) -> None:
    """ERR-02: the class follows the status; message, code and param come from the envelope."""
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="test-model", messages=USER, temperature=3)
    assert (bad.value.param, bad.value.code, bad.value.type) == (
        "temperature", "decimal_above_max_value", "invalid_request_error",
    )  # fmt: skip
    assert bad.value.request_id is not None
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="x", input="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as unsupported:
        client.chat.completions.retrieve("chatcmpl-1")
    assert unsupported.value.code == "unsupported_operation"
    with (
        openai.OpenAI(base_url=f"{echoing.url}/v1", api_key="wrong") as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"


def test_a_large_body_gets_its_answer(echoing: Live) -> None:
    """413 on a socket, with and without a content length: the answer arrives, not a reset."""
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    body = b'{"model": "test-model", "input": "' + b"x" * 11_000_000 + b'"}'

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    with httpx2.Client(base_url=echoing.url, headers=headers, timeout=20) as http:
        for content in (body, pieces()):
            answer = http.post("/v1/responses", content=content)
            assert answer.status_code == 413
            assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("api", ["chat", "responses", "completions"])
async def test_closing_a_stream_frees_the_request(gated: tuple[Live, GatedEngine], api: str) -> None:
    """HTTP-11: the asynchronous client leaves in mid-stream."""
    server, engine = gated
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        server.loop.call_soon_threadsafe(engine.let, 3)
        stream: Any
        match api:
            case "chat":
                stream = await client.chat.completions.create(model="test-model", messages=USER, stream=True)
            case "responses":
                stream = await client.responses.create(model="test-model", input="hi", stream=True)
            case _:
                stream = await client.completions.create(model="test-model", prompt="hi", stream=True)
        await anext(aiter(stream))
        assert engine.num_running == 1
        await stream.close()
        await until(lambda: engine.num_running == 0)
    assert engine.aborted == engine.started


async def test_leaving_a_plain_request_frees_it_too(gated: tuple[Live, GatedEngine]) -> None:
    """HTTP-11: no server cancels a handler that has not begun to answer, so ours has to look."""
    server, engine = gated
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        asking = asyncio.create_task(client.chat.completions.create(model="test-model", messages=USER))
        await until(lambda: engine.num_running == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: engine.num_running == 0)
    assert engine.aborted == engine.started


def listens(server: Live) -> bool:
    try:
        httpx2.get(f"{server.url}/health/ready")
    except httpx2.ConnectError:
        return False
    return True


def test_a_shutdown_lets_a_running_stream_finish(gated: tuple[Live, GatedEngine]) -> None:
    server, engine = gated
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        server.loop.call_soon_threadsafe(engine.let, 2)
        stream = iter(client.chat.completions.create(model="test-model", messages=USER, stream=True))
        seen = [next(stream)]
        server.stop()
        eventually(lambda: not listens(server))
        server.loop.call_soon_threadsafe(engine.let)
        seen += stream

    assert "".join(chunk.choices[0].delta.content or "" for chunk in seen) == "You said: hello €"
    assert seen[-1].choices[0].finish_reason == "stop"
    assert engine.aborted == []
    server.thread.join(20)
    assert not server.thread.is_alive()


class Trip(pydantic.BaseModel):
    """What the client wants to have."""

    city: Literal["Lima", "Oslo"]
    days: Annotated[int, pydantic.Field(ge=1, le=9)]
    stops: Annotated[list[bool], pydantic.Field(max_length=2)]


def test_parse_returns_the_types_of_the_client(ours: openai.OpenAI) -> None:
    """SO-01 as its users meet it: `.parse()` sends a strict schema and reads the answer into a model."""
    chat = ours.chat.completions.parse(
        model="test-model", messages=USER, response_format=Trip, temperature=1, max_tokens=200
    )
    assert isinstance(chat.choices[0].message.parsed, Trip)
    response = ours.responses.parse(
        model="test-model", input="hello", text_format=Trip, temperature=1, max_output_tokens=200
    )
    assert isinstance(response.output_parsed, Trip)


def test_the_stream_helpers_parse_too(ours: openai.OpenAI) -> None:
    with ours.chat.completions.stream(
        model="test-model", messages=USER, response_format=Trip, temperature=1, max_tokens=200
    ) as stream:
        kinds = {event.type for event in stream}
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Trip)
    assert {"content.delta", "content.done"} <= kinds
    with ours.responses.stream(
        model="test-model", input="hello", text_format=Trip, temperature=1, max_output_tokens=200
    ) as events:
        kinds = {event.type for event in events}  # type: ignore[misc]
        assert isinstance(events.get_final_response().output_parsed, Trip)
    assert "response.output_text.delta" in kinds


def test_an_unsupported_schema_is_a_bad_request(ours: openai.OpenAI) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"not": {}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ours.chat.completions.create(model="test-model", messages=USER, response_format=schema)
    assert caught.value.code == "invalid_json_schema"
    assert caught.value.param == "response_format"
