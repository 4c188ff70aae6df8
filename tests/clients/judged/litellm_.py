"""Hold LiteLLM against every legal answer."""

import json

import litellm
from taking import HELLO, MODEL, Json, take, tool

MESSAGES = [{"role": "user", "content": HELLO}]


def ask(url: str, **options: object) -> object:
    return litellm.completion(
        model=f"openai/{MODEL}",
        api_base=url,
        api_key="none",
        messages=MESSAGES,
        max_retries=0,
        timeout=20,
        **options,
    )


def chat(url: str, expected: Json) -> None:
    answer = ask(url)
    assert answer.choices[0].message.content == expected["text"]
    assert answer.usage.prompt_tokens == expected["prompt_tokens"]


def chat_stream(url: str, expected: Json) -> None:
    parts = list(ask(url, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == expected["text"]
    assert {part.choices[0].finish_reason for part in parts if part.choices} - {None} == {"stop"}


def chat_call(url: str, expected: Json) -> None:
    (call,) = ask(url, tools=[tool(expected)]).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        expected["tool"],
        expected["arguments"],
    )


def chat_call_stream(url: str, expected: Json) -> None:
    whole = litellm.stream_chunk_builder(list(ask(url, tools=[tool(expected)], stream=True)))
    (call,) = whole.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        expected["tool"],
        expected["arguments"],
    )


take([chat, chat_stream, chat_call, chat_call_stream])
