"""gpt-oss, which writes harmony."""

from __future__ import annotations

from plumbline.dialects.api import ReasoningDialect, Section, ToolDialect
from plumbline.dialects.harmony import HarmonyForm

__all__ = ["REASONING", "TOOLS"]

TOOLS = (
    ToolDialect(
        name="harmony",
        aliases=("openai", "gpt-oss"),
        reader="harmony",
        sections=(Section(form=HarmonyForm(), between="<|start|>assistant"),),
        detect=(r"<\|channel\|>", r"<\|constrain\|>|functions\.", r"<\|message\|>"),
    ),
)

REASONING = (
    ReasoningDialect(
        name="harmony",
        aliases=("openai_gptoss", "gpt-oss"),
        reader="harmony",
        open=("<|channel|>analysis<|message|>",),
        close=("<|end|>",),
        after_open="",
        before_close="",
        after_close="",
        markers=HarmonyForm().markers,
        detect=(r"<\|channel\|>", r"analysis", r"<\|message\|>"),
    ),
)
