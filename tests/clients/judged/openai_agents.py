"""Hold OpenAI's agents against every legal answer: an agent calls a tool and reads its result, over both APIs."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI
from taking import HELLO, MODEL, Json, take

SEEN: list[Json] = []


@function_tool(strict_mode=False)
def get_weather(city: str, days: list[int], options: dict | None = None) -> str:
    """Return the weather."""
    SEEN.append({"city": city, "days": days, "options": options})
    return "sunny"


def agent(url: str, kind: type) -> Agent:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20)
    settings = ModelSettings(include_usage=True)
    return Agent(
        name="a", model=kind(model=MODEL, openai_client=client), tools=[get_weather], model_settings=settings
    )


def check(text: str, expected: Json) -> None:
    assert text == expected["text"], text
    assert [expected["arguments"]] == SEEN, SEEN


def chat(url: str, expected: Json) -> None:
    SEEN.clear()
    check(Runner.run_sync(agent(url, OpenAIChatCompletionsModel), HELLO).final_output, expected)


def response(url: str, expected: Json) -> None:
    SEEN.clear()
    check(Runner.run_sync(agent(url, OpenAIResponsesModel), HELLO).final_output, expected)


def _streamed(url: str, kind: type, expected: Json) -> None:
    async def run() -> str:
        found = Runner.run_streamed(agent(url, kind), HELLO)
        async for _ in found.stream_events():
            pass
        return found.final_output

    SEEN.clear()
    check(asyncio.run(run()), expected)


def chat_stream(url: str, expected: Json) -> None:
    _streamed(url, OpenAIChatCompletionsModel, expected)


def response_stream(url: str, expected: Json) -> None:
    _streamed(url, OpenAIResponsesModel, expected)


take([chat, response, chat_stream, response_stream])
