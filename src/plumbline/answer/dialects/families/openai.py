"""gpt-oss, which writes harmony."""

from __future__ import annotations

from plumbline.answer.dialects.formats.harmony import ASSISTANT, MARKERS, HarmonyCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect

__all__ = ["REASONING", "TOOLS"]

TOOLS = (
    ToolDialect(
        name="harmony",
        aliases=("openai", "gpt-oss"),
        messages=True,
        prompt_encoding="harmony",
        sections=(Section(call_format=HarmonyCall(), between=ASSISTANT),),
        detect=(r"<\|channel\|>", r"<\|constrain\|>|functions\.", r"<\|message\|>"),
    ),
)

REASONING = (
    ReasoningDialect(
        name="harmony",
        aliases=("openai_gptoss", "gpt-oss"),
        messages=True,
        prompt_encoding="harmony",
        open=("<|channel|>analysis<|message|>",),
        close=("<|end|>",),
        after_open="",
        before_close="",
        after_close=ASSISTANT,
        markers=MARKERS,
        detect=(r"<\|channel\|>", r"analysis", r"<\|message\|>"),
    ),
)
