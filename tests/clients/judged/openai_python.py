"""Hold the official client for Python against every legal answer."""

import json

import openai
from taking import HELLO, MODEL, Json, take, tool

MESSAGES = [{"role": "user", "content": HELLO}]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20)


def chat(url: str, expected: Json) -> None:
    answer = client(url).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == expected["text"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == expected["prompt_tokens"]


def chat_stream(url: str, expected: Json) -> None:
    options = {"include_usage": True}
    with client(url).chat.completions.stream(
        model=MODEL, messages=MESSAGES, stream_options=options
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
    answer = stream.get_final_completion()
    assert text == answer.choices[0].message.content == expected["text"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == expected["completion_tokens"]


def chat_call(url: str, expected: Json) -> None:
    answer = client(url).chat.completions.create(model=MODEL, messages=MESSAGES, tools=[tool(expected)])
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        expected["tool"],
        expected["arguments"],
    )


def chat_call_stream(url: str, expected: Json) -> None:
    with client(url).chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=[tool(expected)]
    ) as stream:
        for _ in stream:
            pass
    (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        expected["tool"],
        expected["arguments"],
    )
    assert call.id


def completion_stream(url: str, expected: Json) -> None:
    stream = client(url).completions.create(model=MODEL, prompt=HELLO, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == expected["text"]


def response(url: str, expected: Json) -> None:
    answer = client(url).responses.create(model=MODEL, input=HELLO)
    assert answer.output_text == expected["text"]
    assert answer.usage.output_tokens == expected["completion_tokens"]


def response_stream(url: str, expected: Json) -> None:
    with client(url).responses.stream(model=MODEL, input=HELLO) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == stream.get_final_response().output_text == expected["text"]


def response_call_stream(url: str, expected: Json) -> None:
    tools = [{"type": "function", **tool(expected)["function"]}]
    with client(url).responses.stream(model=MODEL, input=HELLO, tools=tools) as stream:
        for _ in stream:
            pass
    (call,) = stream.get_final_response().output
    assert (call.name, json.loads(call.arguments)) == (expected["tool"], expected["arguments"])


def response_socket(url: str, expected: Json) -> None:
    text = ""
    with client(url).responses.connect() as connection:
        connection.response.create(model=MODEL, input=HELLO)
        for event in connection:
            assert event.type != "error", event
            text += event.delta if event.type == "response.output_text.delta" else ""
            if event.type == "response.completed":
                break
    assert text == event.response.output_text == expected["text"]


take(
    [
        chat, chat_stream, chat_call, chat_call_stream, completion_stream,
        response, response_stream, response_call_stream, response_socket,
    ]
)  # fmt: skip
