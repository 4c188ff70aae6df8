"""Qwen, Hermes, and the families that write calls as they do."""

from __future__ import annotations

import msgspec

from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.formats.tagged import TAGS, TaggedCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = ["ENABLE_THINKING", "REASONING", "TOOLS"]

ENABLE_THINKING = ThinkingControl(on=(("enable_thinking", True),), off=(("enable_thinking", False),))

_JSON = Section(
    call_format=JsonCall(),
    open=("<tool_call>",),
    close=("</tool_call>",),
    after_open="\n",
    before_close="\n",
    between="\n",
    single=True,
)
_CODER = TAGS["<function"]


def _coder(call_format: TaggedCall) -> tuple[Section, ...]:
    """Return sections with and without the tag before the function, which models often leave out."""
    bare = msgspec.structs.replace(call_format, open="", name_ends=(call_format.key, call_format.close))
    return (
        msgspec.structs.replace(_JSON, call_format=call_format),
        msgspec.structs.replace(_JSON, call_format=bare, open=(call_format.open,), at_line=True),
    )


TOOLS = (
    ToolDialect(
        name="hermes",
        aliases=("qwen", "qwen25", "qwen2d5", "qwen3", "qwen3_json", "granite4", "trinity", "reka"),
        sections=(
            _JSON,
            # Qwen2.5-Coder leaves the tag out, or writes another one.
            msgspec.structs.replace(_JSON, open=("<tools>",), close=("</tools>",), at_line=True, loose=True),
            msgspec.structs.replace(_JSON, open=("```json", "```"), close=("```",), at_line=True, loose=True),
            Section(call_format=JsonCall(), starts="{", at_line=True, loose=True),
            # Qwen3-Coder, where its own dialect was not chosen.
            msgspec.structs.replace(_coder(_CODER)[1], loose=True),
        ),
        content_gap="\n",
        detect=(r"<tool_call>", r"</tool_call>"),
        generality=1,
    ),
    ToolDialect(
        name="qwen3_coder",
        aliases=("qwen3_xml", "qwen3_5", "nemotron_v3", "nemotron_3", "step3p5", "nanbeige", "minicpmv"),
        sections=_coder(_CODER),
        content_gap="\n",
        detect=(r"<tool_call>", r"<function=", r"<parameter="),
    ),
    ToolDialect(
        name="mimo",
        # The same without line feeds around values, which are taken as they stand.
        sections=_coder(msgspec.structs.replace(_CODER, wrapped=False)),
        content_gap="\n",
        detect=(r"<tool_call>", r"<function=", r"<parameter=", r"MiMo"),
    ),
    ToolDialect(
        name="seed_oss",
        # Values stand between the tags as they are: a line feed belongs to the value.
        sections=(
            msgspec.structs.replace(
                _JSON,
                call_format=msgspec.structs.replace(_CODER, wrapped=False),
                open=("<seed:tool_call>",),
                close=("</seed:tool_call>",),
            ),
        ),
        content_gap="\n",
        detect=(r"<seed:tool_call>", r"<function=", r"<parameter="),
    ),
    ToolDialect(
        name="longcat",
        sections=(
            msgspec.structs.replace(_JSON, open=("<longcat_tool_call>",), close=("</longcat_tool_call>",)),
        ),
        content_gap="\n",
        detect=(r"<longcat_tool_call>",),
    ),
    ToolDialect(
        name="ernie45",
        sections=(_JSON,),
        silent=("<response>", "</response>"),
        content_gap="\n",
        detect=(r"<tool_call>", r"<response>"),
    ),
)

REASONING = (
    ReasoningDialect(
        name="qwen3",
        aliases=(
            "qwen3-thinking",
            "interns1",
            "holo2",
            "mimo",
            "longcat",
            "nanbeige",
            "poolside_v1",
            "dots",
            "minicpmv",
            "reka",
        ),
        open=("<think>", "<longcat_think>"),
        close=("</think>", "</longcat_think>"),
        calls_inside=True,
        detect=(r"</think>|</longcat_think>", r"enable_thinking"),
        generality=1,
        switch=ENABLE_THINKING,
    ),
    ReasoningDialect(
        name="think",
        aliases=("qwq", "qwen3_thinking_2507"),
        # Models with these tags and nothing else to recognise them by: QwQ, Qwen3's thinking releases, Phi 4's
        # reasoning releases. They have no switch; `frame` sees whether the prompt opens the thinking.
        open=("<think>",),
        close=("</think>",),
        calls_inside=True,
        detect=(r"</think>",),
        generality=2,
    ),
    ReasoningDialect(
        name="nemotron_v3",
        aliases=("nemotron_3", "granite_thinking_parser"),
        open=("<think>",),
        close=("</think>",),
        calls_inside=True,
        detect=(r"</think>", r"truncate_history_thinking"),
        switch=ENABLE_THINKING,
    ),
    ReasoningDialect(
        name="seed_oss",
        open=("<seed:think>",),
        close=("</seed:think>",),
        calls_inside=True,
        detect=(r"<seed:think>",),
        # In this family a budget of 0 turns thinking off.
        switch=ThinkingControl(off=(("thinking_budget", 0),), budget="thinking_budget"),
    ),
    ReasoningDialect(
        name="ernie45",
        open=("<think>",),
        close=("</think>",),
        silent=("<response>", "</response>"),
        detect=(r"</think>", r"<response>"),
        switch=ENABLE_THINKING,
    ),
)
