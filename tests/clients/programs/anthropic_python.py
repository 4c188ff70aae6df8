"""Use the official anthropic package: whole, streamed, tools, schemas, thinking, counts, errors."""

import json
import os

import anthropic

MODEL = os.environ["PLUMBLINE_MODEL"]
TOOL = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
USER = {"role": "user", "content": "What is the weather in Paris?"}
client = anthropic.Anthropic()


def done(feature: str) -> None:
    print(f"   {feature}", flush=True)


whole = client.messages.create(
    model=MODEL,
    max_tokens=60,
    messages=[{"role": "user", "content": "Hello!"}],
    extra_body={"temperature": 0},
)
with client.messages.stream(
    model=MODEL,
    max_tokens=60,
    messages=[{"role": "user", "content": "Hello!"}],
    extra_body={"temperature": 0},
) as stream:
    text = "".join(stream.text_stream)
    streamed = stream.get_final_message()
assert whole.content[0].text == text == streamed.content[0].text
assert whole.stop_reason == streamed.stop_reason == "end_turn"
assert whole.usage.output_tokens == streamed.usage.output_tokens > 0
assert whole._request_id
done("whole and streamed")

with client.messages.stream(
    model=MODEL, max_tokens=200, messages=[USER], tools=[TOOL], tool_choice={"type": "any"}
) as stream:
    called = stream.get_final_message()
[call] = [block for block in called.content if block.type == "tool_use"]
assert called.stop_reason == "tool_use"
assert isinstance(call.input["city"], str)
result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "21 degrees"}]}
following = [USER, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
answered = client.messages.create(model=MODEL, max_tokens=100, messages=following, tools=[TOOL])
assert answered.content[-1].type == "text"
done("a tool, its result")

count = client.messages.count_tokens(model=MODEL, messages=following, tools=[TOOL]).input_tokens
assert count == answered.usage.input_tokens + answered.usage.cache_read_input_tokens
done("count_tokens")

thought = client.messages.create(
    model=MODEL,
    max_tokens=1200,
    thinking={"type": "enabled", "budget_tokens": 1024},
    messages=[{"role": "user", "content": "What is 12 + 7?"}],
)
again = [
    {"role": "user", "content": "What is 12 + 7?"},
    {"role": "assistant", "content": thought.content},
    {"role": "user", "content": "And 20 + 3?"},
]
assert client.messages.create(model=MODEL, max_tokens=100, messages=again).content
done("thinking, sent back")


@anthropic.beta_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"21 degrees in {city}"


runner = client.beta.messages.tool_runner(
    model=MODEL,
    max_tokens=200,
    messages=[USER],
    tools=[weather],
    tool_choice={"type": "any"},
    max_iterations=2,
)
rounds = list(runner)
assert len(rounds) == 2, "the runner sends a thread first, and all of the conversation after its refusal"
assert all(block.type != "tool_use" or block.input.get("city") is not None for block in rounds[0].content)
done("the tool runner")

listed = list(client.models.list())
assert client.models.retrieve(listed[0].id) == listed[0]
assert listed[0].lifecycle == "active"
done("models")

batches = None
try:
    client.messages.batches.list()
except anthropic.NotFoundError as raised:
    batches = raised.body["error"]["type"]
assert batches == "not_found_error"
done("batches are refused")

schema = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
formatted = client.messages.create(
    model=MODEL,
    max_tokens=100,
    messages=[{"role": "user", "content": "How many days?"}],
    output_config={"format": {"type": "json_schema", "schema": schema}},
)
assert isinstance(json.loads(formatted.content[-1].text)["days"], int)
done("a schema")

stranger = client.with_options(api_key="wrong")
for error, asked, changes in (
    (anthropic.NotFoundError, client, {"model": "nothing"}),
    (anthropic.BadRequestError, client, {"messages": []}),
    (anthropic.AuthenticationError, stranger, {}),
):
    try:
        asked.messages.create(**{"model": MODEL, "max_tokens": 9, "messages": [USER], **changes})
    except error as raised:
        found = raised.body["error"]["message"]
    assert found
    found = ""
done("errors")
