"""Muse: messages with a recipient each, and calls in tags of their own namespace."""

from __future__ import annotations

from plumbline.answer.dialects.formats.tagged import TaggedCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = ["REASONING", "TOOLS"]

_START = "<|start|>assistant"
_MESSAGE = "<|message|>"
_END = "<|eom|>"
# An answer to the user has its own header here, so that an answer that begins with tags is not read as a call.
_SILENT = (
    *(f"{role}to={name}{_MESSAGE}" for role in ("", "assistant ") for name in ("user", "commentary")),
    f"assistant{_MESSAGE}",
    _START,
    _MESSAGE,
    _END,
    "<|eot|>",
)
_CALLS = "<atem:function_calls>"

TOOLS = (
    ToolDialect(
        name="muse",
        aliases=("muse_glimmer",),
        sections=(
            Section(
                call_format=TaggedCall(
                    open='<atem:invoke name="',
                    opened='">',
                    key='<atem:parameter name="',
                    key_end='">',
                    end="</atem:parameter>",
                    close="</atem:invoke>",
                    newline="\n",
                    doubled=True,
                ),
                # Only directly after a header: anywhere else the model writes about calls.
                open=(f"{_MESSAGE}{_CALLS}", f"{_MESSAGE}\n{_CALLS}"),
                close=("</atem:function_calls>",),
                after_open="\n",
                before_close="\n",
                recipient=" to={name}",
                between=f"{_END}{_START}",
            ),
        ),
        silent=_SILENT,
        headed=(_MESSAGE,),
        header="to=",
        content_gap=f"{_END}{_START}",
        text_header=f" to=user{_MESSAGE}",
        detect=(r"<atem:function_calls>",),
    ),
)

REASONING = (
    ReasoningDialect(
        name="muse",
        aliases=("muse_glimmer",),
        # The prompt ends with the start of a message. Messages to the developer are not for the user either.
        open=(f" to=self{_MESSAGE}", f"to=self{_MESSAGE}", f"to=developer{_MESSAGE}"),
        close=(_END, "<|eot|>"),
        after_open="",
        before_close="",
        after_close=_START,
        calls_inside=True,
        silent=_SILENT,
        headed=(_MESSAGE,),
        header="to=",
        text_header=f" to=user{_MESSAGE}",
        next_message=_START,
        detect=(r"to=self<\|message\|>",),
        switch=ThinkingControl(effort="reasoning_strength", efforts=("low", "medium", "high")),
    ),
)
