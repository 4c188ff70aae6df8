"""Use LiteLLM: completion, streams, tools, text completion, responses, and its two ways to Messages."""

import asyncio
import os

import litellm

MODEL = f"openai/{os.environ['PLUMBLINE_MODEL']}"
BASE = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
HELLO = [{"role": "user", "content": "Hello, I am Ada."}]


def done(feature: str) -> None:
    print(f"   {feature}", flush=True)


whole = litellm.completion(model=MODEL, messages=HELLO, max_tokens=30, **BASE)
assert whole.usage.completion_tokens > 0
chunks = list(litellm.completion(model=MODEL, messages=HELLO, max_tokens=30, stream=True, **BASE))
assert litellm.stream_chunk_builder(chunks).choices[0].message.content
done("completion: whole and streamed")

weather = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
called = (
    litellm.completion(
        model=MODEL, messages=HELLO, max_tokens=60, tools=[weather], tool_choice="required", **BASE
    )
    .choices[0]
    .message
)
assert called.tool_calls[0].function.name == "weather"
results = [{"role": "tool", "tool_call_id": call.id, "content": "Rain."} for call in called.tool_calls]
answered = [*HELLO, called, *results]
assert litellm.completion(model=MODEL, messages=answered, max_tokens=30, **BASE).choices[0].message.content
done("completion: a tool")

assert (
    litellm.text_completion(
        model=f"text-completion-openai/{os.environ['PLUMBLINE_MODEL']}", prompt="Once", max_tokens=5, **BASE
    )
    .choices[0]
    .text
)
done("text_completion")

first = litellm.responses(model=MODEL, input="Hello, I am Ada.", max_output_tokens=40, **BASE)
second = litellm.responses(
    model=MODEL, input="Who am I?", previous_response_id=first.id, max_output_tokens=40, **BASE
)
assert second.usage.input_tokens > first.usage.input_tokens
assert litellm.get_responses(response_id=first.id, **BASE).id
assert [
    event.type
    for event in litellm.responses(model=MODEL, input="Hi", stream=True, max_output_tokens=40, **BASE)
]
assert litellm.delete_responses(response_id=first.id, **BASE).deleted
done("responses: create, previous_response_id, get, stream, delete")

MESSAGES = {
    "model": f"anthropic/{os.environ['PLUMBLINE_MODEL']}",
    "api_base": os.environ["ANTHROPIC_BASE_URL"],
    "api_key": os.environ["ANTHROPIC_API_KEY"],
}
whole = litellm.completion(messages=HELLO, max_tokens=30, **MESSAGES)
assert whole.usage.completion_tokens > 0
chunks = list(litellm.completion(messages=HELLO, max_tokens=30, stream=True, **MESSAGES))
assert litellm.stream_chunk_builder(chunks).choices[0].message.content
called = litellm.completion(
    messages=HELLO, max_tokens=60, tools=[weather], tool_choice="required", **MESSAGES
).choices[0]
assert called.finish_reason == "tool_calls"
assert called.message.tool_calls[0].function.name == "weather"
results = [
    {"role": "tool", "tool_call_id": call.id, "content": "Rain."} for call in called.message.tool_calls
]
answered = [*HELLO, called.message, *results]
assert (
    litellm.completion(messages=answered, max_tokens=30, tools=[weather], **MESSAGES)
    .choices[0]
    .message.content
)
done("completion over Messages (anthropic/): whole, streamed, a tool")


async def messages() -> None:
    message = await litellm.anthropic_messages(messages=HELLO, max_tokens=30, **MESSAGES)
    assert message["content"][0]["text"]
    assert message["stop_reason"] in ("end_turn", "max_tokens")
    sent = b""
    async for part in await litellm.anthropic_messages(
        messages=HELLO, max_tokens=30, stream=True, **MESSAGES
    ):
        sent += part
    assert b"event: message_start" in sent
    assert b"event: message_stop" in sent
    try:
        await litellm.anthropic_messages(
            messages=HELLO, max_tokens=30, **{**MESSAGES, "model": "anthropic/none"}
        )
    except litellm.NotFoundError:
        return
    raise AssertionError("an unknown model is answered")


asyncio.run(messages())
done("anthropic_messages: whole, streamed, an error")
