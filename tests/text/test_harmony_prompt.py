"""Prompts in the harmony format."""

from __future__ import annotations

import json

import pytest
from support.models import byte_level

from plumbline.answer.text.prompts.harmony import HarmonyEncoder, typescript
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError
from plumbline.answer.turn import ChatPrompt
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.decode import decode
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.protocols.responses.reader import read_response

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where."},
                "unit": {"enum": ["celsius", "kelvin"], "default": "celsius"},
                "days": {"type": "array", "items": {"type": ["integer", "null"]}},
            },
            "required": ["city"],
        },
    },
}
PHASES = {"commentary": "commentary", "final_answer": "final", None: "final"}
FIXED = {"current_date": "2026-11-20", "model_identity": "You are a test."}
SYSTEM = (
    "<|start|>system<|message|>You are a test.\nKnowledge cutoff: 2024-06\nCurrent date: 2026-11-20\n\n"
    "Reasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message."
)


def test_a_plain_conversation() -> None:
    said = HarmonyEncoder().render(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello.", "reasoning_content": "Greet."},
            {"role": "user", "content": "Bye"},
        ],
        kwargs=FIXED,
    )
    assert said == (
        SYSTEM + "<|end|><|start|>developer<|message|># Instructions\n\nBe brief.<|end|>"
        "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|end|>"
        "<|start|>user<|message|>Bye<|end|><|start|>assistant"
    )


def test_tools_are_types_and_calls_are_messages() -> None:
    said = HarmonyEncoder().render(
        [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "I look.",
                "tool_calls": [
                    {"id": "c1", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ],
        tools=[WEATHER],
        kwargs=FIXED,
    )
    assert said == (
        SYSTEM + "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>"
        "<|start|>developer<|message|># Tools\n\n## functions\n\nnamespace functions {\n\n// Tells the weather.\n"
        "type get_weather = (_: {\n// Where.\ncity: string,\n"
        'unit?: "celsius" | "kelvin", // default: celsius\ndays?: (number | null)[],\n}) => any;\n\n'
        "} // namespace functions<|end|><|start|>user<|message|>Weather?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Oslo"}<|call|>'
        "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>rain<|end|><|start|>assistant"
    )


def test_the_last_message_can_be_left_open() -> None:
    said = HarmonyEncoder().render(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}],
        continue_final_message=True,
        kwargs=FIXED,
    )
    assert said.endswith("<|start|>assistant<|channel|>final<|message|>Well,")


def test_unrepresentable_messages_are_refused() -> None:
    encoder = HarmonyEncoder()
    with pytest.raises(TemplateError, match="at least one message"):
        encoder.render([])
    with pytest.raises(TemplateError, match="reasoning_effort"):
        encoder.render([{"role": "user", "content": "Hi"}], kwargs={"reasoning_effort": "huge"})
    with pytest.raises(TemplateError, match="continue_final_message"):
        encoder.render([{"role": "user", "content": "Hi"}], continue_final_message=True)
    circle = {"$ref": "#"}
    with pytest.raises(TemplateError, match="refer to themselves"):
        typescript({"$ref": "#/a"}, {"a": {"type": "array", "items": {"$ref": "#/a"}}})
    assert typescript(circle, {}) == "any"


def test_an_earlier_text_keeps_its_channel() -> None:
    """Clients send the `phase` of earlier items of Responses back; without one a text is an answer."""
    said = ({"role": "assistant", "content": str(phase), "phase": phase} for phase in PHASES)
    body = {"model": "m", "input": [{"role": "user", "content": "Hi", "phase": "commentary"}, *said]}
    request = decode(CreateResponse, json.dumps(body).encode())
    prompt = read_response(request, Defaults(vocab_size=100)).prompt
    assert isinstance(prompt, ChatPrompt)
    text = Renderer(byte_level(), HarmonyEncoder()).text(prompt)
    for phase, channel in PHASES.items():
        assert f"<|start|>assistant<|channel|>{channel}<|message|>{phase}<|end|>" in text
    assert "<|start|>user<|message|>Hi<|end|>" in text
    shown = Renderer(byte_level(), ChatTemplate("{% for m in messages %}[{{ m.phase }}]{% endfor %}")).text(
        prompt
    )
    assert shown == "[][commentary][final_answer][]"
