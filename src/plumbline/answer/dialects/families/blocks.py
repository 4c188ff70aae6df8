"""Families that write answers in blocks between special markers: PLaMo 3, Inkling, Solar Open; and MiniCPM 5."""

from __future__ import annotations

from plumbline.answer.dialects.families.qwen import ENABLE_THINKING
from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.formats.named_json import NamedJson
from plumbline.answer.dialects.formats.tagged import TaggedCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = ["REASONING", "TOOLS"]

_INKLING_TEXTS = ("<|content_text|>", "<|content_invoke_tool_text|>", "<|content_tool_error|>")
_INKLING_KINDS = ("<|content_thinking|>", *_INKLING_TEXTS)
_INKLING = ("<|message_model|>", *_INKLING_TEXTS, "<|end_message|>", "<|content_model_end_sampling|>")
_SOLAR = ("<|begin|>assistant", "<|content|>", "<|end|>", "<|calls|>")


def _plamo(name: str) -> str:
    return f"<|plamo:{name}:plamo|>"


TOOLS = (
    ToolDialect(
        name="plamo3",
        sections=(
            Section(
                call_format=NamedJson(
                    prefix=_plamo("begin_tool_name"),
                    separator=_plamo("end_tool_name")
                    + _plamo("begin_tool_arguments")
                    + "<|plamo:constrain|>json<|plamo:msg|>",
                    suffix=_plamo("end_tool_arguments"),
                ),
                open=(_plamo("begin_tool_requests"),),
                close=(_plamo("end_tool_requests"),),
                item_open=_plamo("begin_tool_request"),
                item_close=_plamo("end_tool_request"),
            ),
        ),
        silent=("<|plamo:tag|>",),
        anywhere=True,
        detect=(r"plamo:begin_tool_requests",),
    ),
    ToolDialect(
        name="inkling",
        sections=(
            Section(
                call_format=JsonCall(arguments_key="args", other_arguments_keys=("arguments",)),
                open=("<|content_invoke_tool_json|>",),
                close=("<|end_message|>",),
                between="<|message_model|>",
                single=True,
            ),
        ),
        silent=_INKLING,
        headed=(*_INKLING_KINDS, "<|content_invoke_tool_json|>"),
        content_gap="<|end_message|><|message_model|>",
        text_header="<|content_text|>",
        detect=(r"<\|content_invoke_tool_json\|>",),
        tokens=("<|content_invoke_tool_json|>",),
    ),
    ToolDialect(
        name="solar_open",
        sections=(
            Section(
                call_format=NamedJson(after_id="<|tool_call:name|>", separator="<|tool_call:args|>"),
                open=("<|tool_calls|>",),
                item_open="<|tool_call:begin|>",
                item_close="<|tool_call:end|>",
            ),
        ),
        silent=_SOLAR,
        detect=(r"<\|tool_call:begin\|>",),
        tokens=("<|tool_call:begin|>",),
    ),
    ToolDialect(
        name="minicpm5",
        sections=(
            Section(
                call_format=TaggedCall(
                    open='name="',
                    opened='">',
                    key='<param name="',
                    # Models sometimes leave the space out, in this tag and in the one of the call.
                    other_key='<paramname="',
                    key_end='">',
                    end="</param>",
                    cdata=True,
                ),
                open=("<function",),
                close=("</function>",),
                after_open=" ",
                between="\n",
                single=True,
            ),
        ),
        content_gap="\n",
        detect=(r"<function name=", r"<param name="),
    ),
)

REASONING = (
    ReasoningDialect(
        name="plamo3",
        open=(_plamo("begin_think"),),
        close=(_plamo("end_think"), "<|plamo:tag|>"),
        starts_inside=True,
        calls_inside=True,
        anywhere=True,
        silent=("<|plamo:tag|>",),
        detect=(r"plamo:begin_think",),
        switch=ENABLE_THINKING,
    ),
    ReasoningDialect(
        name="inkling",
        open=("<|content_thinking|>",),
        close=("<|end_message|>",),
        after_open="",
        before_close="",
        after_close="<|message_model|>",
        silent=_INKLING,
        headed=_INKLING_KINDS,
        text_header="<|content_text|>",
        detect=(r"<\|content_thinking\|>",),
        tokens=("<|content_thinking|>",),
    ),
    ReasoningDialect(
        name="solar_open",
        open=("<|think|>",),
        close=("<|end|>",),
        after_open="",
        before_close="",
        after_close="<|begin|>assistant",
        silent=_SOLAR,
        detect=(r"<\|begin\|>assistant", r"<\|think\|>"),
        tokens=("<|tool_call:begin|>",),
        # With the two lowest efforts the prompt has an empty block of thinking.
        switch=ThinkingControl(
            off=(("reasoning_effort", "minimal"),),
            effort="reasoning_effort",
            efforts=("minimal", "low", "medium", "high"),
        ),
    ),
)
