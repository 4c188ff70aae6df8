"""Mistral: calls after `[TOOL_CALLS]`, as an array in old models and by name in new ones, with short ids."""

from __future__ import annotations

from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.formats.named_json import NamedJson
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = ["REASONING", "TOOLS"]

TOOLS = (
    ToolDialect(
        name="mistral",
        sections=(
            Section(
                call_format=NamedJson(separator="[ARGS]", id_marker="[CALL_ID]"),
                open=("[TOOL_CALLS]",),
                single=True,
                inner=("[ARGS]",),
            ),
            Section(call_format=JsonCall(), open=("[TOOL_CALLS]",), after_open=" ", array=True, starts="["),
            Section(call_format=JsonCall(), array=True, starts="[", at_line=True, loose=True),
        ),
        ids="mistral",
        silent=("[/TOOL_CALLS]",),
        detect=(r"\[TOOL_CALLS\]",),
    ),
)

REASONING = (
    ReasoningDialect(
        name="mistral",
        open=("[THINK]",),
        close=("[/THINK]",),
        after_open="",
        before_close="",
        after_close="",
        calls_inside=True,
        detect=(r"\[THINK\]",),
        switch=ThinkingControl(
            on=(("reasoning_effort", "high"),),
            off=(("reasoning_effort", "none"),),
            effort="reasoning_effort",
            efforts=("high",),
        ),
    ),
)
