"""GLM, and those that write arguments as GLM does: Hunyuan's Hy3 and Hy4, IQuest's Q1, K2 Horizon."""

from __future__ import annotations

import msgspec

from plumbline.answer.dialects.families.qwen import ENABLE_THINKING
from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.formats.tagged import TaggedCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = ["REASONING", "TOOLS"]

_LINES = TaggedCall(
    open="",
    wrapper="<tool_call>",
    name_ends=("<arg_key>", "</tool_call>"),
    key="<arg_key>",
    key_end="</arg_key>",
    value_gap="\n",
    value_open="<arg_value>",
    end="</arg_value>",
    newline="\n",
)
_ONE_LINE = msgspec.structs.replace(_LINES, value_gap="", newline="")
_SECTION = Section(
    call_format=_LINES, open=("<tool_call>",), close=("</tool_call>",), between="\n", single=True
)


_IN_LINE = msgspec.structs.replace(_SECTION, call_format=_ONE_LINE, between="")
_IQUEST = Section(
    call_format=msgspec.structs.replace(_ONE_LINE, name_ends=("<arg_key>", "</iquest_tool_call>")),
    open=("<iquest_tool_call>",),
    close=("</iquest_tool_call>",),
    single=True,
)
_HY4 = Section(
    # Checkpoints with a different suffix in their markers (`<tool_calls:…>`) are not supported.
    call_format=_ONE_LINE,
    open=("<tool_calls>",),
    close=("</tool_calls>",),
    item_open="<tool_call>",
    item_close="</tool_call>",
)
_HORIZON = TaggedCall(
    open="",
    name_ends=("<ifm|arg_key>", "</ifm|tool_call>"),
    key="<ifm|arg_key>",
    key_end="</ifm|arg_key>",
    type_open="<ifm|arg_type>",
    type_close="</ifm|arg_type>",
    value_open="<ifm|arg_value>",
    end="</ifm|arg_value>",
)
_HORIZONS = tuple(
    Section(
        call_format=call_format,
        open=("<ifm|tool_calls>",),
        close=("</ifm|tool_calls>",),
        item_open="<ifm|tool_call>",
        item_close="</ifm|tool_call>",
        starts=starts,
    )
    for call_format, starts in ((_HORIZON, ""), (JsonCall(), "{"))
)
_SUFFIX = ":opensource"
"""The suffix of tag names in Hunyuan's open release."""


def _hy(suffix: str) -> Section:
    """Return the section of Hy3 with a suffix after its tag names."""
    return Section(
        call_format=TaggedCall(
            open="",
            opened=f"<tool_sep{suffix}>",
            key=f"<arg_key{suffix}>",
            key_end=f"</arg_key{suffix}>",
            value_gap="\n",
            value_open=f"<arg_value{suffix}>",
            end=f"</arg_value{suffix}>",
            newline="\n",
        ),
        open=(f"<tool_calls{suffix}>",),
        close=(f"</tool_calls{suffix}>",),
        item_open=f"<tool_call{suffix}>",
        item_close=f"</tool_call{suffix}>",
        after_open="\n",
        before_close="\n",
        between="\n",
    )


TOOLS = (
    ToolDialect(
        name="glm45",
        aliases=("glm", "ling3", "poolside_v1"),
        sections=(_SECTION, _SECTION.without_beginning()),
        content_gap="\n",
        detect=(r"<arg_key>", r"</arg_key>(\\n|\s*\n)<arg_value>"),
    ),
    ToolDialect(
        name="glm47",
        aliases=("spark25",),
        # The same on one line. Both are read by either.
        sections=(_IN_LINE, _IN_LINE.without_beginning()),
        detect=(r"<arg_key>",),
    ),
    ToolDialect(
        name="iquest_q1",
        sections=(_IQUEST, _IQUEST.without_beginning()),
        detect=(r"<iquest_tool_call>",),
    ),
    ToolDialect(
        name="hy_v4",
        sections=(_HY4, _HY4.without_beginning()),
        detect=(r"<tool_calls>", r"<arg_key>"),
    ),
    ToolDialect(
        name="k2_horizon",
        # A variable of its template chooses between tags, tags with types, and JSON.
        sections=(*_HORIZONS, _HORIZONS[0].without_beginning()),
        detect=(r"<ifm\|tool_calls>",),
    ),
    ToolDialect(
        name="hy_v3",
        aliases=("hunyuan",),
        sections=(_hy(""), _hy(_SUFFIX), _hy("").without_beginning(), _hy(_SUFFIX).without_beginning()),
        content_gap="\n",
        detect=(r"<tool_calls>", r"<tool_sep>", r"<arg_key>"),
    ),
)

REASONING = (
    ReasoningDialect(
        name="glm45",
        aliases=("glm47", "ling3"),
        open=("<think>",),
        close=("</think>",),
        after_open="",
        before_close="",
        after_close="\n",
        calls_inside=True,
        detect=(r"\[gMASK\]", r"</think>"),
        # Some templates have one of the two variables only; one that does not know an effort takes it for the most.
        switch=ThinkingControl(
            on=ENABLE_THINKING.on,
            off=(*ENABLE_THINKING.off, ("reasoning_effort", "low")),
            effort="reasoning_effort",
            efforts=("low", "high", "max"),
        ),
    ),
    ReasoningDialect(
        name="hy_v3",
        aliases=("hy_v4",),
        open=("<think>", f"<think{_SUFFIX}>"),
        close=("</think>", f"</think{_SUFFIX}>"),
        after_open="",
        before_close="",
        after_close="\n",
        calls_inside=True,
        detect=(r"</think(\{\})?>", r"(?<!/)no_think", r"reasoning_effort"),
        switch=ThinkingControl(
            on=(("reasoning_effort", "high"),),
            off=(("reasoning_effort", "no_think"),),
            effort="reasoning_effort",
            efforts=("low", "high"),
        ),
    ),
    ReasoningDialect(
        name="k2_horizon",
        open=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        close=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        calls_inside=True,
        detect=(r"<ifm\|think>",),
        switch=ThinkingControl(effort="reasoning_effort", efforts=("low", "medium", "high")),
    ),
)
