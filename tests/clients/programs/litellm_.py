"""Use LiteLLM: completion, streams, tools, text completion and responses."""

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
