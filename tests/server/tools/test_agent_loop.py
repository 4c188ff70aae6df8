"""The agent loop with the pocket model and the official client: call, result, answer; all APIs, both modes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx2
import openai
import pydantic
import pytest
from support.servers.live import live
from support.servers.pocket import pocket_settings

from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

MODEL = "plumbline-pocket"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": SCHEMA}
QUESTION = "Use get_weather with city Paris."
RESULT = '{"sky": "clear"}'


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        live(lambda: load(pocket_settings()), Settings()) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions(client: openai.OpenAI, stream: bool, thinks: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    body: Any = {
        "model": MODEL,
        "tools": [{"type": "function", "function": FUNCTION}],
        "reasoning_effort": "low" if thinks else "none",
    }

    def ask() -> Any:
        if not stream:
            return client.chat.completions.create(messages=messages, **body).choices[0]
        with client.chat.completions.stream(messages=messages, **body) as events:
            for _ in events:
                pass
            return events.get_final_completion().choices[0]

    first = ask()
    (call,) = first.message.tool_calls
    assert first.finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert bool(getattr(first.message, "reasoning_content", None)) == thinks
    assert not first.message.content
    messages += [
        first.message.model_dump(exclude_none=True, exclude={"parsed", "refusal"}),
        {"role": "tool", "tool_call_id": call.id, "content": RESULT},
    ]
    messages[1]["tool_calls"] = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
    ]
    second = ask()
    assert second.finish_reason == "stop"
    assert "clear" in second.message.content


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_responses(client: openai.OpenAI, stream: bool, thinks: bool) -> None:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    body: Any = {
        "model": MODEL,
        "tools": [{"type": "function", **FUNCTION}],
        "reasoning": {"effort": "low" if thinks else "none"},
        "store": False,
    }

    def ask() -> Any:
        if not stream:
            return client.responses.create(input=items, **body)
        with client.responses.stream(input=items, **body) as events:
            for _ in events:
                pass
            return events.get_final_response()

    first = ask()
    assert first.status == "completed"
    assert [item.type for item in first.output] == ["reasoning"] * thinks + ["function_call"]
    call = first.output[-1]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    # The items of an answer are items of the next request as they stand.
    items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
    second = ask()
    assert "clear" in second.output_text


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_completions(client: openai.OpenAI, stream: bool, thinks: bool) -> None:
    """An answer is one text there, markup and all, to a prompt that the client has made itself."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]

    def ask() -> str:
        rendered: dict[str, Any] = {
            "messages": messages,
            "tools": [{"type": "function", "function": FUNCTION}],
            "chat_template_kwargs": {"enable_thinking": thinks},
        }
        made = httpx2.post(str(client.base_url).removesuffix("v1/") + "tokenize", json=rendered).json()
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": made["tokens"],
            "max_tokens": 200,
            "temperature": 0,
        }
        if not stream:
            return str(client.completions.create(**body).choices[0].text)
        chunks = client.completions.create(stream=True, **body)
        return "".join(chunk.choices[0].text for chunk in chunks)

    found = ask()
    assert found.startswith("<think>") == thinks
    arguments = {"city": "Paris"}
    call = json.dumps({"name": "get_weather", "arguments": arguments})
    assert found.endswith(f"<tool_call>\n{call}\n</tool_call>")
    function = {"name": "get_weather", "arguments": json.dumps(arguments)}
    messages += [
        {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "call_1", "content": RESULT},
    ]
    assert "clear" in ask()


class GetWeather(pydantic.BaseModel):
    """Get the weather in a city."""

    city: str


class Greeting(pydantic.BaseModel):
    word: Literal["hello", "goodbye"]


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_chat_parses_calls_and_formats_into_the_types_of_the_client(
    client: openai.OpenAI, stream: bool, thinks: bool
) -> None:
    """TOOL-01, SO-01: `.parse()` and `.stream()` with strict tools, with a format, and with both."""
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")

    def ask(content: str, **options: Any) -> Any:
        body: Any = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "reasoning_effort": "low" if thinks else "none",
            "max_tokens": 300,
            **options,
        }
        if not stream:
            return client.chat.completions.parse(**body).choices[0].message
        with client.chat.completions.stream(**body) as events:
            for _ in events:
                pass
            return events.get_final_completion().choices[0].message

    for more in ({}, {"response_format": Greeting}):
        called = ask(QUESTION, tools=[tool], tool_choice="required", **more)
        (call,) = called.tool_calls
        assert call.function.parsed_arguments == GetWeather(city="Paris")
        assert bool(getattr(called, "reasoning_content", None)) == thinks
        assert called.parsed is None
    greeting = ask("Say hello.", response_format=Greeting)
    assert isinstance(greeting.parsed, Greeting)
    assert bool(getattr(greeting, "reasoning_content", None)) == thinks
    assert not greeting.tool_calls


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_responses_parse_calls_and_formats_into_the_types_of_the_client(
    client: openai.OpenAI, stream: bool, thinks: bool
) -> None:
    """TOOL-01, SO-01."""
    chat_tool: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")
    tool = {"type": "function", **chat_tool["function"]}

    def ask(content: str, **options: Any) -> Any:
        body: Any = {
            "model": MODEL,
            "input": content,
            "reasoning": {"effort": "low" if thinks else "none"},
            "max_output_tokens": 300,
            **options,
        }
        if not stream:
            return client.responses.parse(**body)
        with client.responses.stream(**body) as events:
            for _ in events:
                pass
            return events.get_final_response()

    for more in ({}, {"text_format": Greeting}):
        called = ask(QUESTION, tools=[tool], tool_choice="required", **more)
        assert [item.type for item in called.output] == ["reasoning"] * thinks + ["function_call"]
        assert json.loads(called.output[-1].arguments) == {"city": "Paris"}
        assert called.output_parsed is None
    greeting = ask("Say hello.", text_format=Greeting)
    assert isinstance(greeting.output_parsed, Greeting)
    assert [item.type for item in greeting.output] == ["reasoning"] * thinks + ["message"]


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_budget_for_thinking_is_kept(client: openai.OpenAI, budget: int) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say hello three times."}],
        reasoning_effort="low",
        extra_body={"thinking_token_budget": budget},
    )
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    # The markers of the thinking and the line feed after the first count with it, but not against the budget.
    assert details.reasoning_tokens is not None
    assert details.reasoning_tokens <= budget + 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content


def test_a_thinking_budget_works_beside_a_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    response = client.responses.create(
        model=MODEL,
        input="Say hello three times.",
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        extra_body={"thinking_token_budget": 4},
        max_output_tokens=200,
    )
    if response.status == "completed":
        assert list(json.loads(response.output_text)) == ["n"]
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens <= 6
