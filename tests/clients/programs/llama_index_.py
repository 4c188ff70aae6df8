"""Use LlamaIndex over both APIs."""

import os

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool

# LlamaIndex knows the context of OpenAI's models only, and asks for it by name.
from llama_index.llms.openai import OpenAI, OpenAIResponses, utils

MODEL = os.environ["PLUMBLINE_MODEL"]
utils.ALL_AVAILABLE_MODELS[MODEL] = 4096
utils.CHAT_MODELS[MODEL] = 4096


def done(feature: str) -> None:
    print(f"   {feature}", flush=True)


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"It rains in {city}."


base = {"model": MODEL, "api_base": os.environ["OPENAI_BASE_URL"]}
hello = [ChatMessage(role="user", content="Hello, I am Ada.")]
for llm in (OpenAI(max_tokens=60, **base), OpenAIResponses(max_output_tokens=60, **base)):
    name = type(llm).__name__
    assert llm.chat(hello).message.content
    assert "".join(piece.delta or "" for piece in llm.stream_chat(hello))
    done(f"{name}: whole and streamed")
    tools = [FunctionTool.from_defaults(weather)]
    called = llm.chat_with_tools(tools, user_msg="The weather in Paris?", tool_required=True)
    [call] = llm.get_tool_calls_from_response(called)
    assert call.tool_name == "weather"
    assert "city" in call.tool_kwargs
    done(f"{name}: a tool")
