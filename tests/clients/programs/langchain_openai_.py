"""Use LangChain's ChatOpenAI over both APIs, with tools, schemas and continued responses."""

import os

from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

MODEL = os.environ["PLUMBLINE_MODEL"]


def done(feature: str) -> None:
    print(f"   {feature}", flush=True)


class Place(BaseModel):
    """A place."""

    city: str
    days: int


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"It rains in {city}."


for responses in (False, True):
    chat = ChatOpenAI(model=MODEL, max_tokens=60, use_responses_api=responses)
    kind = "Responses" if responses else "chat"
    assert chat.invoke("Hello!").usage_metadata["output_tokens"] > 0
    whole = AIMessageChunk(content="")
    for chunk in chat.stream("Hello!"):
        whole += chunk
    assert whole.text
    asked = [HumanMessage("What is the weather in Paris?")]
    called = chat.bind_tools([weather], tool_choice="weather").invoke(asked)
    [call] = called.tool_calls
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert chat.bind_tools([weather], tool_choice="none").invoke([*asked, called, result]).text
    done(f"{kind}: whole, streamed, with a tool")
    for method in ("json_schema", "function_calling"):
        structured = ChatOpenAI(model=MODEL, max_tokens=400, use_responses_api=responses, temperature=0)
        found = structured.with_structured_output(Place, method=method, include_raw=True).invoke("Where?")
        assert isinstance(found["parsed"], Place), found
    done(f"{kind}: structured output")

linked = ChatOpenAI(model=MODEL, max_tokens=60, use_responses_api=True, use_previous_response_id=True)
first = linked.invoke([HumanMessage("Hello, I am Ada.")])
second = linked.invoke([HumanMessage("Hello, I am Ada."), first, HumanMessage("Who am I?")])
assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]
done("use_previous_response_id")
assert OpenAI(model=MODEL, max_tokens=5).invoke("Once")
done("completions")
