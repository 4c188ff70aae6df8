"""Hold the official client for Anthropic's Messages against every legal answer."""

import anthropic
from taking import HELLO, MODEL, Json, take, tool

MESSAGES = [{"role": "user", "content": HELLO}]


def asked(url: str, expected: Json, *, calls: bool = False) -> tuple[anthropic.Anthropic, Json]:
    """Return a client, and what it asks."""
    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0, timeout=20)
    definition = {"name": expected["tool"], "input_schema": tool(expected)["function"]["parameters"]}
    tools = {"tools": [definition]} if calls else {}
    return client, {"model": MODEL, "max_tokens": 64, "messages": MESSAGES, **tools}


def read(answer: anthropic.types.Message, expected: Json, *, calls: bool = False) -> None:
    """Compare a message with the script."""
    (block,) = answer.content
    if calls:
        assert (block.name, block.input) == (expected["tool"], expected["arguments"])
    else:
        assert block.text == expected["text"]
    assert answer.stop_reason == ("tool_use" if calls else "end_turn")
    assert answer.usage.input_tokens == expected["prompt_tokens"]
    assert answer.usage.output_tokens == expected["completion_tokens"]


def message(url: str, expected: Json) -> None:
    client, body = asked(url, expected)
    read(client.messages.create(**body), expected)


def message_stream(url: str, expected: Json) -> None:
    client, body = asked(url, expected)
    with client.messages.stream(**body) as stream:
        assert "".join(stream.text_stream) == expected["text"]
    read(stream.get_final_message(), expected)


def message_events(url: str, expected: Json) -> None:
    client, body = asked(url, expected)
    texts = [
        event.delta.text
        for event in client.messages.create(**body, stream=True)
        if event.type == "content_block_delta"
    ]
    assert "".join(texts) == expected["text"]


def message_call(url: str, expected: Json) -> None:
    client, body = asked(url, expected, calls=True)
    read(client.messages.create(**body), expected, calls=True)


def message_call_stream(url: str, expected: Json) -> None:
    client, body = asked(url, expected, calls=True)
    with client.messages.stream(**body) as stream:
        for _ in stream:
            pass
    read(stream.get_final_message(), expected, calls=True)


take([message, message_stream, message_events, message_call, message_call_stream])
