"""Use the Agents SDK: both APIs, tools, handed-over state, conversation and compaction sessions, a WebSocket."""

import asyncio
import os

import agents
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner
from openai import AsyncOpenAI

MODEL = os.environ["PLUMBLINE_MODEL"]
SHORT = ModelSettings(max_tokens=40)
FORCED = ModelSettings(max_tokens=60, tool_choice="required")


def done(feature: str) -> None:
    print(f"   {feature}", flush=True)


@agents.function_tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"It rains in {city}."


async def main() -> None:
    agents.set_tracing_disabled(True)
    client = AsyncOpenAI()
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(MODEL, client)
        result = await Runner.run(Agent(name="a", model=model, model_settings=SHORT), "Hello!")
        assert isinstance(result.final_output, str)
        streamed = Runner.run_streamed(Agent(name="a", model=model, model_settings=SHORT), "Hello!")
        assert [event async for event in streamed.stream_events()]
        agent = Agent(name="a", model=model, model_settings=FORCED, tools=[weather])
        looped = await Runner.run(agent, "What is the weather in Paris?", max_turns=3)
        outputs = [item.output for item in looped.new_items if item.type == "tool_call_output_item"]
        assert outputs
        assert all(output.startswith("It rains in ") for output in outputs)
        done(f"{kind.__name__}: whole, streamed, with a tool")

    agent = Agent(name="a", model=OpenAIResponsesModel(MODEL, client), model_settings=SHORT)
    first = await Runner.run(agent, "Hello, I am Ada.")
    second = await Runner.run(agent, "Who am I?", previous_response_id=first.last_response_id)
    assert second.raw_responses[0].usage.input_tokens > first.raw_responses[0].usage.input_tokens
    done("previous_response_id")

    session = agents.OpenAIConversationsSession(openai_client=client)
    await Runner.run(agent, "Hello, I am Ada.", session=session)
    await Runner.run(agent, "Who am I?", session=session)
    assert len(await session.get_items()) >= 4
    await session.clear_session()
    done("OpenAIConversationsSession")

    from agents.memory import OpenAIResponsesCompactionSession

    compacting = OpenAIResponsesCompactionSession(
        session_id="s",
        underlying_session=agents.SQLiteSession("s"),
        client=client,
        # It takes names of OpenAI's models only; the server has one as an alias.
        model=os.environ["PLUMBLINE_ALIAS"],
        should_trigger_compaction=lambda _: True,
    )
    await Runner.run(agent, "Hello, I am Ada.", session=compacting)
    await Runner.run(agent, "Who am I?", session=compacting)
    assert any(item.get("type") == "compaction" for item in await compacting.get_items())
    done("OpenAIResponsesCompactionSession")

    if hasattr(agents, "responses_websocket_session"):
        async with agents.responses_websocket_session() as socket:
            plain = Agent(name="a", model=MODEL, model_settings=SHORT)
            one = await socket.run(plain, "Hello, I am Ada.")
            two = await socket.run(plain, "Who am I?", previous_response_id=one.last_response_id)
        assert two.last_response_id
        done("responses_websocket_session")


asyncio.run(main())
