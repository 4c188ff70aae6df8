"""MiniMax M2 and M3, and Dots, which writes calls as M2 does."""

from __future__ import annotations

import msgspec

from plumbline.answer.dialects.formats.elements import ElementCall
from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.formats.tagged import TAGS
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = ["REASONING", "TOOLS"]

_NAMESPACE = "]<]minimax[>["
_INVOKE = TAGS["<invoke"]

_BARE = msgspec.structs.replace(_INVOKE, open="", name_ends=(_INVOKE.key, _INVOKE.close))


def _alone(close: str) -> Section:
    """Return the section of a call without its wrapper, which models leave out."""
    return Section(
        call_format=_BARE,
        open=(_INVOKE.open,),
        close=(close,),
        after_open="\n",
        before_close="\n",
        between="\n",
        single=True,
        at_line=True,
    )


TOOLS = (
    ToolDialect(
        name="minimax_m2",
        aliases=("minimax-m2",),
        sections=(
            Section(
                call_format=_INVOKE,
                open=("<minimax:tool_call>",),
                close=("</minimax:tool_call>",),
                after_open="\n",
                before_close="\n",
                between="\n",
            ),
            _alone("</minimax:tool_call>"),
            # Wrappers of other families, which agents show the model.
            Section(
                call_format=_INVOKE,
                open=("<function_calls>",),
                close=("</function_calls>",),
                at_line=True,
                loose=True,
            ),
            Section(
                call_format=JsonCall(),
                open=("[TOOL_CALL]",),
                close=("[/TOOL_CALL]",),
                at_line=True,
                loose=True,
            ),
        ),
        content_gap="\n",
        detect=(r"<minimax:tool_call>",),
    ),
    ToolDialect(
        name="dots",
        sections=(
            *(
                Section(
                    call_format=call_format,
                    open=("<dots_function_call>",),
                    close=("</dots_function_call>",),
                    after_open="\n",
                    before_close="\n",
                    between="\n",
                    starts=starts,
                )
                for call_format, starts in ((_INVOKE, "<"), (JsonCall(), "{"))
            ),
            _alone("</dots_function_call>"),
        ),
        content_gap="\n",
        detect=(r"<dots_function_call>",),
    ),
    ToolDialect(
        name="minimax_m3",
        aliases=("minimax-m3",),
        sections=(
            Section(
                call_format=ElementCall(tag=_NAMESPACE),
                open=(f"{_NAMESPACE}<tool_call>",),
                close=(f"{_NAMESPACE}</tool_call>",),
                after_open="\n",
                before_close="\n",
                between="\n",
            ),
            Section(
                call_format=ElementCall(tag=_NAMESPACE, begun=True),
                open=(f"{_NAMESPACE}<invoke",),
                close=(f"{_NAMESPACE}</tool_call>",),
                between="\n",
                single=True,
                at_line=True,
            ),
            # The tags of M2, which agents show the model.
            Section(
                call_format=_INVOKE,
                open=("<minimax:tool_call>",),
                close=("</minimax:tool_call>",),
                at_line=True,
                loose=True,
            ),
            msgspec.structs.replace(_alone("</minimax:tool_call>"), loose=True),
        ),
        content_gap="\n",
        detect=(r"\]<\]minimax\[>\[", r"<tool_call>", r"<invoke"),
    ),
)

REASONING = (
    ReasoningDialect(
        name="minimax_m2",
        aliases=("minimax",),
        open=("<think>",),
        close=("</think>",),
        starts_inside=True,
        calls_inside=True,
        detect=(r"<minimax:tool_call>", r"</think>"),
    ),
    ReasoningDialect(
        name="minimax_m2_append_think",
        aliases=("minimax-append-think",),
        open=("<think>",),
        close=("</think>",),
        starts_inside=True,
        append=True,
    ),
    ReasoningDialect(
        name="minimax_m3",
        aliases=("minimax-m3",),
        open=("<mm:think>",),
        close=("</mm:think>",),
        after_open="",
        before_close="",
        after_close="",
        calls_inside=True,
        detect=(r"<mm:think>",),
        switch=ThinkingControl(on=(("thinking_mode", "enabled"),), off=(("thinking_mode", "disabled"),)),
    ),
)
