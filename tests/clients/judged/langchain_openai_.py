"""Hold LangChain's model for OpenAI's API against every legal answer."""

from langchain_openai import ChatOpenAI
from taking import HELLO, MODEL, Json, take, tool


def model(url: str, **options: object) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=url, api_key="none", max_retries=0, timeout=20, **options)


def chat(url: str, expected: Json) -> None:
    answer = model(url).invoke(HELLO)
    assert answer.content == expected["text"]
    assert answer.usage_metadata["input_tokens"] == expected["prompt_tokens"]


def chat_stream(url: str, expected: Json) -> None:
    parts = list(model(url, stream_usage=True).stream(HELLO))
    assert "".join(part.content for part in parts) == expected["text"]
    counts = [part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata]
    assert sum(counts) == expected["completion_tokens"]


def chat_call(url: str, expected: Json) -> None:
    (call,) = model(url).bind_tools([tool(expected)]).invoke(HELLO).tool_calls
    assert (call["name"], call["args"]) == (expected["tool"], expected["arguments"])


def chat_call_stream(url: str, expected: Json) -> None:
    whole = None
    for part in model(url).bind_tools([tool(expected)]).stream(HELLO):
        whole = part if whole is None else whole + part
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == (expected["tool"], expected["arguments"])


def response_stream(url: str, expected: Json) -> None:
    parts = list(model(url, use_responses_api=True, output_version="responses/v1").stream(HELLO))
    texts = [block.get("text", "") for part in parts for block in part.content if block.get("type") == "text"]
    assert "".join(texts) == expected["text"]


take([chat, chat_stream, chat_call, chat_call_stream, response_stream])
