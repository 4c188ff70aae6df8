"""StepFun's Step 3 family."""

from __future__ import annotations

from plumbline.answer.dialects.formats.tagged import TaggedCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect

__all__ = ["REASONING", "TOOLS"]

TOOLS = (
    ToolDialect(
        name="step3",
        sections=(
            Section(
                call_format=TaggedCall(
                    open='function<｜tool_sep｜><steptml:invoke name="',
                    opened='">',
                    key='<steptml:parameter name="',
                    key_end='">',
                    end="</steptml:parameter>",
                    close="</steptml:invoke>",
                ),
                open=("<｜tool_calls_begin｜>",),
                close=("<｜tool_calls_end｜>",),
                item_open="<｜tool_call_begin｜>",
                item_close="<｜tool_call_end｜>",
                after_open="\n",
                before_close="\n",
                between="\n",
            ),
        ),
        detect=(r"<｜tool_calls_begin｜>",),
    ),
)

REASONING = (
    ReasoningDialect(
        name="step3",
        # Its templates open the thinking themselves, and have no switch.
        aliases=("step3p5",),
        open=("<think>",),
        close=("</think>",),
        after_close="\n",
        starts_inside=True,
        calls_inside=True,
        detect=(r"<think>", r"steptml|step3|Step-3"),
    ),
)
