"""Qwen, and the formats that began with its models or with Hermes."""

from __future__ import annotations

from plumbline.dialects.api import ReasoningDialect, Section, ToolDialect
from plumbline.dialects.forms import JsonCall
from plumbline.dialects.tagged import TaggedCall

__all__ = ["REASONING", "TOOLS"]

_CODER = TaggedCall(
    open="<function=",
    opened=">",
    key="<parameter=",
    key_end=">",
    end="</parameter>",
    close="</function>",
    newline="\n",
    wrapped=True,
)

TOOLS = (
    ToolDialect(
        name="hermes",
        aliases=("qwen", "qwen25", "qwen2d5", "qwen3", "qwen3_json"),
        sections=(
            Section(
                form=JsonCall(),
                open=("<tool_call>",),
                close=("</tool_call>",),
                after_open="\n",
                before_close="\n",
                between="\n",
                single=True,
            ),
        ),
        content_gap="\n",
        detect=(r"<tool_call>", r"</tool_call>", r"\"?name\"?", r"arguments"),
    ),
    ToolDialect(
        name="qwen3_coder",
        aliases=("qwen3_xml", "nemotron_v3", "nemotron_3", "qwen3_5"),
        sections=(
            Section(
                form=_CODER,
                open=("<tool_call>",),
                close=("</tool_call>",),
                after_open="\n",
                before_close="\n",
                between="\n",
                single=True,
            ),
        ),
        content_gap="\n",
        detect=(r"<function=", r"<parameter="),
    ),
)

REASONING = (
    ReasoningDialect(
        name="qwen3",
        aliases=("qwen3-thinking",),
        open=("<think>",),
        close=("</think>",),
        call_ends=True,
        detect=(r"</think>", r"enable_thinking"),
    ),
    ReasoningDialect(
        name="deepseek_r1",
        aliases=("deepseek-r1",),
        open=("<think>",),
        close=("</think>",),
        starts_inside=True,
    ),
)
