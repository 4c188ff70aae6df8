"""Use the official client for Python: helpers, stored responses, conversations, WebSocket; sync and async."""

import asyncio
import os
import time

import openai
from pydantic import BaseModel

MODEL = os.environ["PLUMBLINE_MODEL"]
HELLO = [{"role": "user", "content": "Hello, I am Ada."}]


def done(feature: str) -> None:
    print(f"   {feature}", flush=True)


class Place(BaseModel):
    city: str
    days: int


def chat(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO, max_tokens=30) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
    assert stream.get_final_completion().choices[0].message.content == text
    done("chat: the stream helper")
    parsed = client.chat.completions.parse(
        model=MODEL, messages=HELLO, max_tokens=300, response_format=Place
    ).choices[0]
    assert parsed.finish_reason == "length" or isinstance(parsed.message.parsed, Place)
    done("chat: parsed by a schema")
    stored = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=20, store=True, metadata={"run": "python"}
    )
    assert [one.id for one in client.chat.completions.list(metadata={"run": "python"})] == [stored.id]
    assert client.chat.completions.messages.list(stored.id).data[0].content == "Hello, I am Ada."
    assert client.chat.completions.delete(stored.id).deleted
    done("chat: stored completions")
    assert client.completions.create(model=MODEL, prompt="Once", max_tokens=5).choices[0].text
    done("completions")


def responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Hello, I am Ada.", max_output_tokens=40)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    with client.responses.stream(
        model=MODEL, input="And now?", previous_response_id=first.id, max_output_tokens=40
    ) as stream:
        events = list(stream)
    second = stream.get_final_response()
    assert second.usage.input_tokens > first.usage.input_tokens
    replayed = list(client.responses.retrieve(second.id, stream=True))
    assert [event.sequence_number for event in replayed] == list(range(len(replayed)))
    assert len(replayed) == len(events)
    resumed = list(client.responses.retrieve(second.id, stream=True, starting_after=3))
    assert resumed == replayed[4:]
    assert [item.role for item in client.responses.input_items.list(second.id)] == ["user"]
    done("responses: create, stream, previous_response_id, replay, resume, input items")
    count = client.responses.input_tokens.count(model=MODEL, input="Hello, I am Ada.")
    assert count.input_tokens == first.usage.input_tokens
    done("responses: input tokens")
    parsed = client.responses.parse(model=MODEL, input="Where?", text_format=Place, max_output_tokens=300)
    assert parsed.status == "incomplete" or isinstance(parsed.output_parsed, Place)
    done("responses: parsed by a schema")
    background = client.responses.create(model=MODEL, input="Hi", background=True, max_output_tokens=40)
    while background.status in ("queued", "in_progress"):
        time.sleep(0.02)
        background = client.responses.retrieve(background.id)
    assert background.status in ("completed", "incomplete")
    stopped = client.responses.create(model=MODEL, input="Count.", background=True, max_output_tokens=2000)
    assert client.responses.cancel(stopped.id).status in ("cancelled", "completed", "incomplete")
    client.responses.delete(stopped.id)
    try:
        client.responses.retrieve(stopped.id)
    except openai.NotFoundError:
        done("responses: background, cancel, delete")
    compacted = client.responses.compact(model=MODEL, previous_response_id=second.id)
    again = client.responses.create(
        model=MODEL,
        input=[*compacted.output, {"role": "user", "content": "Sure?"}],
        max_output_tokens=40,
    )
    assert again.output
    done("responses: compact")


def conversations(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "names"}, items=HELLO)
    client.responses.create(model=MODEL, conversation=made.id, input="Who am I?", max_output_tokens=40)
    items = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert len(items) >= 3
    assert client.conversations.items.retrieve(items[0].id, conversation_id=made.id) == items[0]
    client.conversations.items.delete(items[0].id, conversation_id=made.id)
    assert client.conversations.update(made.id, metadata={"topic": "x"}).metadata == {"topic": "x"}
    assert client.conversations.delete(made.id).deleted
    done("conversations")


async def asynchronously() -> None:
    async with openai.AsyncOpenAI() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, stream=True)
        assert [chunk async for chunk in stream][-1].choices[0].finish_reason
        async with client.responses.connect() as connection:
            previous = None
            for text in ("Hello!", "And now?"):
                extra = {} if previous is None else {"previous_response_id": previous}
                await connection.response.create(
                    model=MODEL, input=text, store=False, max_output_tokens=40, **extra
                )
                async for event in connection:
                    if event.type in ("response.completed", "response.incomplete"):
                        previous = event.response.id
                        break
        assert previous
    done("async: streams, and two turns over a WebSocket")


with openai.OpenAI() as sync_client:
    chat(sync_client)
    responses(sync_client)
    conversations(sync_client)
asyncio.run(asynchronously())
