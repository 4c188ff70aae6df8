"""Kimi: K2's numbered functions, and the channels of K3."""

from __future__ import annotations

from plumbline.answer.dialects.formats.named_json import NamedJson
from plumbline.answer.dialects.formats.tagged import TaggedCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = ["REASONING", "TOOLS"]

_THINKING = ThinkingControl(on=(("thinking", True),), off=(("thinking", False),))
_ANSWER = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")
_K3 = TaggedCall(
    open='<|open|>call tool="',
    number='" index="',
    opened='"<|sep|>',
    key='<|open|>argument key="',
    key_end='"<|sep|>',
    end="<|close|>argument<|sep|>",
    close="<|close|>call<|sep|>",
    typed="type",
)

_K2 = Section(
    call_format=NamedJson(numbered=True, separator="<|tool_call_argument_begin|>"),
    # Models write the singular as well.
    open=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    close=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    item_open="<|tool_call_begin|>",
    item_close="<|tool_call_end|>",
)

TOOLS = (
    ToolDialect(
        name="kimi_k2",
        sections=(_K2, _K2.without_beginning()),
        ids="kimi",
        detect=(r"<\|tool_calls_section_begin\|>",),
        tokens=("<|tool_calls_section_begin|>",),
    ),
    ToolDialect(
        name="kimi_k3",
        sections=(
            Section(call_format=_K3, open=("<|open|>tools<|sep|>",), close=("<|close|>tools<|sep|>",)),
        ),
        ids="kimi",
        silent=_ANSWER,
        detect=(r"<\|open\|>", r"<\|sep\|>"),
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
    ),
)

REASONING = (
    ReasoningDialect(
        name="kimi",
        open=("◁think▷",),
        close=("◁/think▷",),
        detect=(r"◁think▷",),
    ),
    ReasoningDialect(
        name="kimi_k2",
        open=("<think>",),
        close=("</think>",),
        after_open="",
        before_close="",
        after_close="",
        calls_inside=True,
        detect=(r"</think>", r"<\|im_middle\|>"),
        switch=_THINKING,
    ),
    ReasoningDialect(
        name="kimi_k3",
        open=("<|open|>think<|sep|>",),
        close=("<|close|>think<|sep|>",),
        after_open="",
        before_close="",
        after_close="",
        calls_inside=True,
        silent=_ANSWER,
        detect=(r"<\|open\|>", r"<\|sep\|>"),
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
        switch=ThinkingControl(
            on=_THINKING.on, off=_THINKING.off, effort="thinking_effort", efforts=("low", "high", "max")
        ),
    ),
)
