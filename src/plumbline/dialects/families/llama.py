"""Llama, and others that write calls as plain JSON or Python, often without a marker before them."""

from __future__ import annotations

from plumbline.dialects.formats.json_calls import JsonCall
from plumbline.dialects.formats.pythonic import PythonCall
from plumbline.dialects.spec.dialect import Section, ToolDialect

__all__ = ["REASONING", "TOOLS"]

_JSON = JsonCall(arguments_key="parameters")

TOOLS = (
    ToolDialect(
        name="llama3_json",
        aliases=("llama3", "llama4_json"),
        sections=(
            Section(call_format=_JSON, starts="{", between="; "),
            Section(call_format=_JSON, open=("<|python_tag|>",), starts="{", between="; "),
        ),
        detect=(r"<\|start_header_id\|>", r"<\|python_tag\|>|\"parameters\""),
    ),
    ToolDialect(
        name="llama4_pythonic",
        sections=(
            Section(call_format=PythonCall(), array=True, starts="["),
            Section(
                call_format=PythonCall(),
                array=True,
                open=("<|python_start|>",),
                close=("<|python_end|>",),
                starts="[",
            ),
        ),
        detect=(r"<\|header_start\|>",),
    ),
    ToolDialect(
        name="pythonic",
        sections=(Section(call_format=PythonCall(), array=True, starts="["),),
        detect=(r"\[\w+\(\w+=\w+",),
        unlike=r"<\|header_start\|>|<\|tool_call_start\|>|<function_calls>",
    ),
    ToolDialect(
        name="lfm2",
        sections=(
            Section(
                call_format=PythonCall(),
                array=True,
                open=("<|tool_call_start|>",),
                close=("<|tool_call_end|>",),
                starts="[",
            ),
            Section(
                call_format=JsonCall(),
                open=("<|tool_call_start|>",),
                close=("<|tool_call_end|>",),
                starts="{",
            ),
        ),
        detect=(r"<\|tool_call_start\|>|<\|tool_list_start\|>",),
    ),
    ToolDialect(
        name="olmo3",
        sections=(
            Section(
                call_format=PythonCall(),
                open=("<function_calls>",),
                close=("</function_calls>",),
                between="\n",
            ),
        ),
        detect=(r"<function_calls>",),
        unlike="DSML",
    ),
    ToolDialect(
        name="xlam",
        sections=(
            Section(call_format=JsonCall(), array=True, starts="["),
            Section(call_format=JsonCall(), array=True, open=("```json", "```"), close=("```",), starts="["),
            Section(
                call_format=JsonCall(), array=True, open=("<tool_call>",), close=("</tool_call>",), starts="["
            ),
            Section(call_format=JsonCall(), array=True, open=("[TOOL_CALLS]",), starts="["),
        ),
        detect=(r"(?i)xlam|\"tool_calls\"\s*:",),
    ),
)

REASONING = ()
