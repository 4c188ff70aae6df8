"""A dialect joined with a model's vocabulary: which control tokens its parser needs, and where an answer starts."""

from __future__ import annotations

import re

import pytest

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame, ModelDialect
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl
from plumbline.answer.events import TextDelta, ToolCallStart


class Vocabulary:
    """Control tokens, and a token for each byte of everything else."""

    def __init__(self, *control: str) -> None:
        self.added = {text: 256 + number for number, text in enumerate(control)}
        self.special_ids = frozenset(self.added.values())
        self.table = [*(bytes([byte]) for byte in range(256)), *(text.encode() for text in control)]

    def encode(self, text: str) -> list[int]:
        """The ids of a rendered prompt."""
        pattern = "|".join(map(re.escape, self.added)) or "(?!)"
        pieces = re.split(f"({pattern})", text)
        return [
            token_id
            for piece in pieces
            for token_id in ([self.added[piece]] if piece in self.added else piece.encode())
        ]

    def dialect(self, tool: str, reasoning: str) -> ModelDialect:
        """The dialects with this vocabulary."""
        return build_dialect(DialectChoice(TOOL_DIALECTS[tool], REASONING_DIALECTS[reasoning]), self)


def test_control_tokens_that_are_parts_of_a_marker_are_shown() -> None:
    vocabulary = Vocabulary("<|action_start|>", "<|plugin|>", "<|action_end|>", "<|im_end|>")
    shown = vocabulary.dialect("internlm", "qwen3").parser({"f": {}}, AnswerFrame()).marker_ids
    assert shown == {vocabulary.added[text] for text in ("<|action_start|>", "<|plugin|>", "<|action_end|>")}
    vocabulary = Vocabulary("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
    shown = vocabulary.dialect("kimi_k3", "kimi_k3").parser({}, AnswerFrame()).marker_ids
    assert shown == {vocabulary.added[text] for text in ("<|open|>", "<|close|>", "<|sep|>")}


@pytest.mark.parametrize(
    ("tool", "reasoning", "control", "prompt", "inside"),
    [
        ("hermes", "qwen3", ["<think>", "</think>"], "<think>\n", True),
        ("hermes", "qwen3", ["<think>", "</think>"], "<think>\n\n</think>\n\n", False),
        ("hermes", "qwen3", [], "assistant\n<think>\n", True),
        ("deepseek_v3", "deepseek_r1", ["<think>", "</think>", "<｜Assistant｜>"], "hi<｜Assistant｜>", True),
        (
            "deepseek_v3",
            "deepseek_r1",
            ["<think>", "</think>", "<｜Assistant｜>"],
            "<｜Assistant｜></think>",
            False,
        ),
        ("deepseek_v3", "deepseek_r1", [], "hi\nassistant\n", True),
        ("deepseek_v3", "deepseek_r1", [], "assistant\n<think>\n\n</think>\n", False),
        ("hermes", "qwen3", [], "say <think> please\nassistant\n", False),
        ("gemma4", "gemma4", ["<|channel>", "<channel|>"], "<|channel>thought\n", True),
        ("gemma4", "gemma4", ["<|channel>", "<channel|>"], "<|channel>thought\n<channel|>", False),
        ("kimi_k3", "kimi_k3", ["<|open|>", "<|close|>", "<|sep|>"], "<|open|>think<|sep|>", True),
        (
            "kimi_k3",
            "kimi_k3",
            ["<|open|>", "<|close|>", "<|sep|>"],
            "<|open|>think<|sep|><|close|>think<|sep|>",
            False,
        ),
        ("mistral", "mistral", ["[THINK]", "[/THINK]", "[/INST]"], "[THINK]x[/THINK] hi[/INST]", False),
    ],
)
def test_where_an_answer_begins_is_read_off_the_prompt(
    tool: str, reasoning: str, control: list[str], prompt: str, inside: bool
) -> None:
    vocabulary = Vocabulary(*control)
    frame = vocabulary.dialect(tool, reasoning).frame(vocabulary.encode(prompt))
    assert (frame.thinking == "inside") is inside


@pytest.mark.parametrize(
    ("tool", "ids"),
    [
        ("hermes", [r"call_[0-9a-f]{24}"] * 2),
        ("mistral", [r"[0-9A-Za-z]{9}"] * 2),
        ("kimi_k2", [r"functions\.f:3", r"functions\.f:4"]),
    ],
)
def test_ids_are_those_of_the_family(tool: str, ids: list[str]) -> None:
    markup = {
        "hermes": '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2,
        "mistral": "[TOOL_CALLS]f[ARGS]{}" * 2,
        "kimi_k2": "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|>" * 2,
    }
    parser = Vocabulary().dialect(tool, "qwen3").parser({"f": {}}, AnswerFrame(), earlier_calls=3)
    events = [*parser.push(TextDelta(markup[tool])), *parser.finish("stop")]
    found = [event.id for event in events if isinstance(event, ToolCallStart)]
    assert len(found) == 2
    assert found[0] != found[1]
    for call_id, pattern in zip(found, ids, strict=True):
        assert re.fullmatch(pattern, call_id)


def test_an_id_that_the_model_repeats_or_that_is_too_long_is_replaced() -> None:
    parser = Vocabulary().dialect("mistral", "mistral").parser({"f": {}}, AnswerFrame())
    text = "".join(f"[TOOL_CALLS]f[CALL_ID]{call_id}[ARGS]{{}}" for call_id in ("a1", "a1", "b" * 70))
    events = [*parser.push(TextDelta(text)), *parser.finish("stop")]
    first, second, third = [event.id for event in events if isinstance(event, ToolCallStart)]
    assert first == "a1"
    assert second != "a1"
    assert len(third) <= 64


@pytest.mark.parametrize(
    ("effort", "budget", "variables"),
    [
        (None, None, {}),
        (None, 100, {"b": 100}),
        ("none", 100, {"t": False}),
        ("minimal", None, {"t": True, "e": "low"}),
        ("medium", 7, {"t": True, "e": "low", "b": 7}),
        ("xhigh", None, {"t": True, "e": "high"}),
        ("max", None, {"t": True, "e": "max"}),
    ],
)
def test_a_switch_names_the_variables_of_its_template(
    effort: str | None, budget: int | None, variables: dict[str, object]
) -> None:
    switch = ThinkingControl(
        on=(("t", True),), off=(("t", False),), effort="e", efforts=("low", "high", "max"), budget="b"
    )
    assert switch.variables(effort, budget) == variables


@pytest.mark.parametrize("effort", ["none", "minimal", "low"])
def test_a_family_that_always_thinks_thinks_least_where_none_is_wanted(effort: str) -> None:
    assert ThinkingControl(effort="e", efforts=("low", "high")).variables(effort) == {"e": "low"}
    assert ThinkingControl().variables(effort) == {}


@pytest.mark.parametrize(
    ("reasoning", "control", "prompt", "ended"),
    [
        ("qwen3", ["<think>", "</think>"], "<think>\n\n</think>\n\n", True),
        ("qwen3", ["<think>", "</think>"], "<think>\n", False),
        ("qwen3", ["<think>", "</think>"], "</think>\n\nHello", False),
        ("deepseek_r1", ["<think>", "</think>"], "<think></think>", True),
        ("qwen3", [], "<think>\n\n</think>\n\n", True),
    ],
)
def test_whether_the_prompt_has_ended_the_thinking(
    reasoning: str, control: list[str], prompt: str, ended: bool
) -> None:
    vocabulary = Vocabulary(*control)
    frame = vocabulary.dialect("hermes", reasoning).frame(vocabulary.encode(prompt))
    assert (frame.thinking == "after") is ended
    assert not (ended and frame.thinking == "inside")


def test_text_that_looks_like_the_end_of_a_thinking_ends_none() -> None:
    vocabulary = Vocabulary("<think>", "</think>")
    dialect = vocabulary.dialect("hermes", "qwen3")
    assert dialect.frame([*vocabulary.encode("<think>"), *b"</think>"]).thinking == "inside"


def test_thinking_behind_a_call_counts_as_thinking() -> None:
    """Every character is a token here; those of the call are none of the thinking."""
    model = build_dialect(DialectChoice(TOOL_DIALECTS["hermes"], REASONING_DIALECTS["qwen3"]))
    before, after = "<think>Is it so?", "Yes.</think>"
    call = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    text = f"{before}{call}{after}"
    parser = model.parser({"ping": {}}, AnswerFrame())
    parser.push(TextDelta(text))
    parser.finish("stop")
    assert parser.num_reasoning_tokens(range(1, len(text) + 1)) == len(before) + len(after)
