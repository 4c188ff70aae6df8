"""Use pydantic-ai over both APIs: tools, typed output, streams, continued responses."""

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings

MODEL = os.environ["PLUMBLINE_MODEL"]


def done(feature: str) -> None:
    print(f"   {feature}", flush=True)


class Place(BaseModel):
    city: str
    days: int


async def main() -> None:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind(MODEL)
        settings = {"max_tokens": 400, "temperature": 0.0}
        plain = Agent(model, model_settings=settings)
        assert (await plain.run("Hello!")).output
        async with plain.run_stream("Hello!") as streamed:
            assert await streamed.get_output()
        done(f"{kind.__name__}: whole and streamed")
        # A typed output is a call of a tool that the request requires.
        typed = Agent(model, output_type=Place, model_settings=settings, retries=3)
        assert isinstance((await typed.run("Where?")).output, Place)
        native = Agent(model, output_type=NativeOutput(Place), model_settings=settings, retries=3)
        assert isinstance((await native.run("Where?")).output, Place)
        done(f"{kind.__name__}: typed output, by a tool and by a schema")

    linked = OpenAIResponsesModelSettings(openai_previous_response_id="auto", max_tokens=60)
    agent = Agent(OpenAIResponsesModel(MODEL), model_settings=linked)
    first = await agent.run("Hello, I am Ada.")
    second = await agent.run("Who am I?", message_history=first.all_messages())
    assert second.usage.input_tokens > first.usage.input_tokens
    done("openai_previous_response_id: auto")


asyncio.run(main())
