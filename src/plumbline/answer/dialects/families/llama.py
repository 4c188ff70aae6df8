"""Llama, and others that write calls as plain JSON or Python, often without a marker before them."""

from __future__ import annotations

import string

import msgspec

from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.formats.named_json import NamedJson
from plumbline.answer.dialects.formats.pythonic import PythonCall
from plumbline.answer.dialects.spec.dialect import Section, ToolDialect

__all__ = ["REASONING", "TOOLS"]

_JSON = JsonCall(arguments_key="parameters")
_PART = ">>>"
_RECIPIENT = NamedJson(separator="\n")
_CALLS = Section(call_format=JsonCall(), open=('{"tool_calls": ',), close=("}",), array=True)
_NAME_STARTS = string.ascii_letters + string.digits + "_-"

TOOLS = (
    ToolDialect(
        name="llama3_json",
        aliases=("llama3", "llama4_json"),
        sections=(
            Section(call_format=_JSON, starts="{", between="; "),
            Section(call_format=_JSON, open=("<|python_tag|>",), starts="{", between="; "),
            # Llama 4 also writes JSON after the marker of its Python calls.
            Section(
                call_format=_JSON,
                open=("<|python_start|>",),
                close=("<|python_end|>",),
                starts="{",
                between="; ",
                at_line=True,
            ),
            Section(call_format=_JSON, starts="[", array=True, at_line=True, loose=True),
        ),
        detect=(r"<\|start_header_id\|>|<\|header_start\|>", r"<\|python_tag\|>|\"parameters\""),
    ),
    ToolDialect(
        name="functionary_v31",
        sections=(
            Section(
                call_format=NamedJson(separator=">"),
                open=("<function=",),
                close=("</function>",),
                single=True,
            ),
        ),
        detect=(r"<\|start_header_id\|>", r"<function=", r"</function>"),
    ),
    ToolDialect(
        name="functionary_v32",
        aliases=("functionary",),
        # Every part names its recipient, `all` for text. The prompt ends with the marker of the first part.
        sections=(
            Section(call_format=_RECIPIENT, starts=_NAME_STARTS, between=_PART),
            Section(call_format=_RECIPIENT, open=(_PART,), single=True),
        ),
        silent=("all\n", f"{_PART}all\n"),
        # Models write no gap, but after a text that ends with `>` the marker would be found too early.
        content_gap="\n",
        detect=(r">>>all|>>>\$\{recipient\}",),
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
        detect=(r"<\|tool_call_start\|>|<\|tool_list_start\|>|List of tools: \[",),
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
    ToolDialect(
        name="generic_json",
        aliases=("generic",),
        # llama.cpp makes models without a format of their own write it. No template shows it.
        sections=(
            _CALLS,
            msgspec.structs.replace(_CALLS, open=('{"tool_call": ',), array=False, single=True),
        ),
        answer_key="response",
    ),
)

REASONING = ()
