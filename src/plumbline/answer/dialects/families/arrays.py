"""Families that write JSON between special markers, mostly an array of calls."""

from __future__ import annotations

import msgspec

from plumbline.answer.dialects.families.qwen import ENABLE_THINKING
from plumbline.answer.dialects.formats.json_calls import JsonCall, KeyedJson
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = ["REASONING", "TOOLS"]


def _both(section: Section) -> tuple[Section, ...]:
    """Return the section, and its array without the marker before it, which models leave out."""
    return section, msgspec.structs.replace(section, open=(), starts="[", at_line=True, loose=True)


_TOOL_CALLS = Section(call_format=JsonCall(), open=("<tool_calls>",), close=("</tool_calls>",), array=True)
_FINAL = ("[END FINAL RESPONSE]",)
_ANSWER = ("<answer>", "</answer>")
_COHERE = Section(
    call_format=JsonCall(name_key="tool_name", arguments_key="parameters", id_key="tool_call_id"),
    open=("<|START_ACTION|>",),
    close=("<|END_ACTION|>",),
    array=True,
)
_RESPONSE = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
_TEXT = ("<|START_TEXT|>", "<|END_TEXT|>", *_RESPONSE)

TOOLS = (
    ToolDialect(
        name="granite",
        sections=(
            Section(call_format=JsonCall(), open=("<|tool_call|>", "<tool_call>"), array=True),
            Section(
                call_format=JsonCall(),
                open=("<|tool_call|>", "<tool_call>"),
                close=("</tool_call>",),
                starts="{",
            ),
        ),
        detect=(r"<\|tool_call\|>", r"<\|start_of_role\|>"),
    ),
    ToolDialect(
        name="granite-20b-fc",
        aliases=("granite_20b_fc",),
        sections=(
            Section(
                call_format=JsonCall(), open=("<function_call>",), after_open=" ", between="\n", single=True
            ),
        ),
        detect=(r"<function_call>",),
    ),
    ToolDialect(
        name="gigachat3",
        sections=(
            Section(
                call_format=JsonCall(), open=("<|function_call|>", "function call<|role_sep|>"), single=True
            ),
        ),
        silent=("<|message_sep|>",),
        detect=(r"<\|function_call\|>|function call<\|role_sep\|>",),
    ),
    ToolDialect(
        name="internlm",
        aliases=("interns1",),
        sections=(
            Section(
                call_format=JsonCall(arguments_key="parameters"),
                open=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
                close=("<|action_end|>",),
                after_open="\n",
                before_close="\n",
                single=True,
            ),
        ),
        detect=(r"<\|action_start\|>",),
    ),
    ToolDialect(
        name="phi4_mini",
        aliases=("phi4_mini_json", "firefunction_v2"),
        sections=(
            Section(call_format=JsonCall(), open=("functools",), array=True),
            Section(call_format=JsonCall(), open=("<|tool_call|>",), close=("<|/tool_call|>",), array=True),
        ),
        detect=(r"functools|<\|/tool_call\|>",),
        tokens=("<|tool_call|>", "<|/tool_call|>"),
    ),
    ToolDialect(
        name="jamba",
        sections=_both(_TOOL_CALLS),
        detect=(r"<tool_calls>",),
        generality=1,
    ),
    ToolDialect(
        name="apriel",
        sections=_both(_TOOL_CALLS),
        silent=_FINAL,
        content_gap="\n",
        detect=(r"<tool_calls>", r"\[BEGIN FINAL RESPONSE\]"),
    ),
    ToolDialect(
        name="minimax_m1",
        aliases=("minimax-m1",),
        sections=(
            Section(
                call_format=JsonCall(),
                open=("<tool_calls>",),
                close=("</tool_calls>",),
                after_open="\n",
                before_close="\n",
                between="\n",
            ),
        ),
        detect=(r"<tool_calls>", r"<beginning_of_sentence>"),
    ),
    ToolDialect(
        name="nemotron_v2",
        aliases=("nemotron_nano_v2",),
        sections=_both(
            Section(call_format=JsonCall(), open=("<TOOLCALL>",), close=("</TOOLCALL>",), array=True)
        ),
        content_gap="\n",
        detect=(r"<TOOLCALL>",),
    ),
    ToolDialect(
        name="hunyuan_a13b",
        sections=_both(_TOOL_CALLS),
        # One of its templates asks for the assistant's name in front of an answer in text.
        silent=(*_ANSWER, "助手："),
        content_gap="\n",
        detect=(r"<tool_calls>", r"<answer>|<\|extra_0\|>"),
    ),
    ToolDialect(
        name="command_r_plus",
        sections=(
            Section(
                call_format=JsonCall(name_key="tool_name", arguments_key="parameters"),
                open=("Action:\n```json", "Action: ```json", "Action:```json"),
                close=("```",),
                after_open="\n",
                before_close="\n",
                array=True,
            ),
        ),
        content_gap="\n",
        detect=(r"Action:(\\n|\s)*```json", r"tool_name"),
    ),
    ToolDialect(
        name="cohere_command3",
        sections=_both(_COHERE),
        silent=_RESPONSE,
        detect=(r"<\|START_ACTION\|>",),
    ),
    ToolDialect(
        name="cohere_command4",
        sections=_both(_COHERE),
        silent=_TEXT,
        detect=(r"<\|START_ACTION\|>", r"<\|START_TEXT\|>"),
    ),
    ToolDialect(
        name="apertus",
        aliases=("apertus2509",),
        sections=(
            Section(
                call_format=KeyedJson(), open=("<|tools_prefix|>",), close=("<|tools_suffix|>",), array=True
            ),
        ),
        detect=(r"<\|tools_prefix\|>",),
        tokens=("<|tools_prefix|>",),
    ),
)

_COHERE_THINKING = ThinkingControl(on=(("reasoning", True),), off=(("reasoning", False),))

REASONING = (
    ReasoningDialect(
        name="granite",
        open=("Here is my thought process:", "Here's my thought process:"),
        close=("Here is my response:", "Here's my response:"),
        detect=(r"Here is my thought process:",),
        switch=ThinkingControl(on=(("thinking", True),), off=(("thinking", False),)),
    ),
    ReasoningDialect(
        name="granite33",
        open=("<think>",),
        close=("</think>",),
        after_open="",
        before_close="",
        after_close="",
        silent=("<response>", "</response>"),
        detect=(r"</think>", r"<response>", r"<\|start_of_role\|>"),
        switch=ThinkingControl(on=(("thinking", True),), off=(("thinking", False),)),
    ),
    ReasoningDialect(
        name="apriel",
        # The prompts of 1.6 end with the opening; 1.5 writes it itself, or tags where it calls.
        open=("Here are my reasoning steps:", "<thinking>"),
        close=("[BEGIN FINAL RESPONSE]", "</thinking>"),
        after_close="\n",
        calls_inside=True,
        silent=_FINAL,
        detect=(r"\[BEGIN FINAL RESPONSE\]",),
    ),
    ReasoningDialect(
        name="nemotron_v2",
        aliases=("nemotron_nano_v2",),
        # The switch is `/no_think` in a message, which no template variable writes.
        open=("<think>",),
        close=("</think>",),
        calls_inside=True,
        detect=(r"</think>", r"<TOOLCALL>"),
    ),
    ReasoningDialect(
        name="hunyuan_a13b",
        aliases=("hunyuan",),
        open=("<think>",),
        close=("</think>",),
        after_close="\n",
        silent=_ANSWER,
        detect=(r"</think>", r"<answer>|<\|extra_0\|>"),
        switch=ENABLE_THINKING,
    ),
    ReasoningDialect(
        name="cohere_command3",
        open=("<|START_THINKING|>",),
        close=("<|END_THINKING|>",),
        after_open="",
        before_close="",
        after_close="",
        silent=_RESPONSE,
        detect=(r"<\|START_THINKING\|>",),
        switch=_COHERE_THINKING,
    ),
    ReasoningDialect(
        name="cohere_command4",
        open=("<|START_THINKING|>",),
        close=("<|END_THINKING|>",),
        after_open="",
        before_close="",
        after_close="",
        calls_inside=True,
        silent=_TEXT,
        detect=(r"<\|START_THINKING\|>", r"<\|START_TEXT\|>"),
        switch=_COHERE_THINKING,
    ),
    ReasoningDialect(
        name="apertus",
        aliases=("apertus2509",),
        open=("<|inner_prefix|>",),
        close=("<|inner_suffix|>",),
        after_open="",
        before_close="",
        after_close="",
        calls_inside=True,
        detect=(r"<\|inner_prefix\|>",),
        tokens=("<|inner_prefix|>",),
        switch=ENABLE_THINKING,
    ),
    ReasoningDialect(
        name="olmo3",
        # Its templates open the thinking themselves, and have no switch.
        open=("<think>",),
        close=("</think>",),
        after_open="",
        before_close="",
        detect=(r"<think>", r"<functions>"),
    ),
)
