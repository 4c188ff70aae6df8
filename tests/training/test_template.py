"""Check the chat template: equal renderings in transformers and a plain sandbox, and its documented format."""

from typing import Any

import pytest
from transformers import AutoTokenizer

from plumbline.pocket import MODEL_DIR
from plumbline_training.texts.corpus import TEMPLATE

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather — «now».",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "id": "c1", "function": {"name": "get_weather", "arguments": {"city": "Malmö"}}}
TEXT_CALL = {
    "type": "function",
    "id": "c2",
    "function": {"name": "get_weather", "arguments": '{"city": "Lund"}'},
}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be <brief> & 'kind'."}, {"role": "user", "content": "Hi\n there "}],
    [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ],
    [
        {"role": "user", "content": "Weather in Malmö and Lund?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [CALL, TEXT_CALL],
            "reasoning_content": "Two calls.",
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"t": 21}'},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": '{"t": 19}'}]},
    ],
    [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "<think>\nold thought\n</think>\n\nFirst"},
        {"role": "user", "content": "Two"},
        {"role": "assistant", "content": "Second", "reasoning_content": "kept"},
    ],
]


@pytest.fixture(scope="module")
def hf() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_DIR)


def plain(messages: list[dict[str, Any]], **more: Any) -> str:
    return TEMPLATE.render(messages=messages, **more)


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("tools", [None, [TOOL], [TOOL, TOOL]])
@pytest.mark.parametrize("more", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
@pytest.mark.parametrize("prompt", [True, False])
def test_transformers_and_the_sandbox_render_the_same(
    hf: Any, messages: list[dict[str, Any]], tools: Any, more: dict[str, Any], prompt: bool
) -> None:
    ours = plain(messages, tools=tools, add_generation_prompt=prompt, **more)
    theirs = hf.apply_chat_template(
        messages, tools=tools, add_generation_prompt=prompt, tokenize=False, **more
    )
    assert ours == theirs


def test_thinking_is_off_by_default() -> None:
    chat = CHATS[0]
    closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert plain(chat, add_generation_prompt=True).endswith(closed)
    assert plain(chat, add_generation_prompt=True, enable_thinking=False).endswith(closed)
    assert plain(chat, add_generation_prompt=True, enable_thinking=True).endswith("<|im_start|>assistant\n")


def test_the_full_rendering_of_a_chat_with_tools() -> None:
    text = plain(CHATS[3], tools=[TOOL], add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\n<tools>\n"
        '{"name": "get_weather", "description": "Get the weather — «now».", "parameters": {"type": "object", '
        '"properties": {"city": {"type": "string"}}, "required": ["city"]}}\n</tools>\n'
        'To call a tool write <tool_call>\n{"name": tool, "arguments": {...}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nWeather in Malmö and Lund?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nTwo calls.\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Malmö"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lund"}}\n</tool_call><|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n{"t": 21}\n</tool_response>\n'
        '<tool_response>\n{"t": 19}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_thoughts_of_earlier_turns_are_left_out() -> None:
    text = plain(CHATS[4])
    assert "old thought" not in text
    assert "<|im_start|>assistant\nFirst<|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n<think>\nkept\n</think>\n\nSecond<|im_end|>\n")
