"""Gemma 4 and FunctionGemma."""

from __future__ import annotations

from plumbline.answer.dialects.families.qwen import ENABLE_THINKING
from plumbline.answer.dialects.formats.gemma import BracedCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect

__all__ = ["REASONING", "TOOLS"]

TOOLS = (
    ToolDialect(
        name="gemma4",
        sections=(
            Section(
                call_format=BracedCall(quote='<|"|>'),
                open=("<|tool_call>",),
                close=("<tool_call|>",),
                single=True,
            ),
        ),
        silent=("<|tool_response>",),
        anywhere=True,
        detect=(r"<\|tool_call>",),
    ),
    ToolDialect(
        name="functiongemma",
        sections=(
            Section(
                call_format=BracedCall(quote="<escape>"),
                open=("<start_function_call>",),
                close=("<end_function_call>",),
                single=True,
            ),
        ),
        silent=("<start_function_response>",),
        detect=(r"<start_function_call>",),
    ),
)

REASONING = (
    ReasoningDialect(
        name="gemma4",
        open=("<|channel>thought", "<|channel>"),
        close=("<channel|>",),
        before_close="",
        after_close="",
        calls_inside=True,
        anywhere=True,
        detect=(r"<\|channel>",),
        switch=ENABLE_THINKING,
    ),
)
