"""DeepSeek, from V3's fenced JSON to the tags of V3.2 and later; GigaChat 3.5, which has tags like these."""

from __future__ import annotations

import msgspec

from plumbline.answer.dialects.formats.named_json import NamedJson
from plumbline.answer.dialects.formats.tagged import TaggedCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = ["REASONING", "TOOLS"]

_V31 = Section(
    call_format=NamedJson(separator="<｜tool▁sep｜>", kind_end="<｜tool▁sep｜>"),
    open=("<｜tool▁calls▁begin｜>",),
    close=("<｜tool▁calls▁end｜>",),
    item_open="<｜tool▁call▁begin｜>",
    item_close="<｜tool▁call▁end｜>",
)
_V3 = msgspec.structs.replace(
    _V31,
    call_format=NamedJson(
        prefix="function<｜tool▁sep｜>", kind_end="<｜tool▁sep｜>", separator="\n```json\n", suffix="\n```"
    ),
    between="\n",
)


_WRAPPERS = ("tool_calls", "function_calls", "calls", "toolcalls", "tool_call", "function_call", "tool")
"""The names of the wrapper in some version, and what models write for them."""


def _dsml(wrapper: str, space: str = "") -> tuple[Section, ...]:
    """Return DeepSeek's tags, and those with the bars and spaces that models write where the token is not at hand.

    Some leave the bars out.
    """
    spaces = (space, "" if space else " ")
    prefixes = tuple(
        f"{bars}{gap}" for gap in spaces for bars in ("｜DSML｜", "|DSML|", "‖DSML‖", "｜｜DSML｜｜")
    )
    variants = tuple(name for name in _WRAPPERS if name != wrapper)
    plain = (msgspec.structs.replace(s, loose=True, at_line=True) for s in _tagged(wrapper, "", variants))
    return (*(s for prefix in prefixes for s in _tagged(wrapper, prefix, variants, prefixes)), *plain)


def _tagged(
    wrapper: str, name: str, variants: tuple[str, ...] = (), others: tuple[str, ...] = ()
) -> tuple[Section, ...]:
    """Return tags with a prefix before every name, which is another one in the end tags of some models."""
    ends = tuple(other for other in others if other != name)
    call_format = TaggedCall(
        open=f'<{name}invoke name="',
        opened='">',
        key=f'<{name}parameter name="',
        other_key='<parameter name="',
        key_end='">',
        end=f"</{name}parameter>",
        close=f"</{name}invoke>",
        other_ends=tuple(f"</{other}parameter>" for other in ends),
        other_closes=tuple(f"</{other}invoke>" for other in ends),
        newline="\n",
        typed="string",
    )
    section = Section(
        call_format=call_format,
        open=(f"<{name}{wrapper}>", *(f"<{name}{variant}>" for variant in variants)),
        close=tuple(f"</{one}{variant}>" for one in (name, *ends) for variant in (wrapper, *variants)),
        after_open="\n",
        before_close="\n",
        between="\n",
    )
    # Models leave the wrapper out.
    bare = msgspec.structs.replace(call_format, open="", name_ends=(call_format.key, call_format.close))
    alone = msgspec.structs.replace(
        section, call_format=bare, open=(call_format.open,), single=True, at_line=True
    )
    return section, alone


TOOLS = (
    ToolDialect(
        name="deepseek_v3",
        aliases=("deepseekv3",),
        sections=(_V3,),
        detect=(r"<｜tool▁calls▁begin｜>", r"```json"),
    ),
    ToolDialect(
        name="deepseek_v31",
        aliases=("deepseekv31",),
        sections=(_V31, _V31.without_beginning()),
        detect=(r"<｜tool▁calls▁begin｜>",),
    ),
    ToolDialect(
        name="deepseek_v32",
        prompt_encoding="deepseek_v32",
        aliases=("deepseekv32", "deepseek-v32"),
        sections=_dsml("function_calls"),
        content_gap="\n\n",
        detect=(r"<｜DSML｜function_calls>",),
    ),
    ToolDialect(
        name="deepseek_v4",
        prompt_encoding="deepseek_v4",
        aliases=("deepseekv4", "deepseek-v4"),
        sections=_dsml("tool_calls"),
        content_gap="\n\n",
        detect=(r"<｜DSML｜tool_calls>",),
        tokens=("｜DSML｜",),
    ),
    ToolDialect(
        name="deepseek_v41",
        aliases=("deepseekv41", "deepseek-v41"),
        sections=_dsml("calls", " "),
        content_gap="\n\n",
        detect=(r"<｜DSML｜ calls>",),
    ),
    ToolDialect(
        name="gigachat35",
        sections=_tagged("tool_calls", "｜GCML｜"),
        content_gap="\n",
        detect=(r"<｜GCML｜tool_calls>",),
    ),
)

REASONING = (
    ReasoningDialect(
        name="deepseek_r1",
        aliases=("deepseek-r1", "gigachat35", "iquest_q1"),
        open=("<think>",),
        close=("</think>",),
        starts_inside=True,
        detect=(r"<｜Assistant｜>", r"</think>"),
    ),
    ReasoningDialect(
        name="deepseek_v3",
        aliases=("deepseek-v3", "deepseek_v31", "deepseek_v32"),
        open=("<think>",),
        close=("</think>",),
        after_open="",
        before_close="",
        after_close="",
        calls_inside=True,
        detect=(r"<｜Assistant｜>", r"</think>", r"\bthinking\b"),
        switch=ThinkingControl(on=(("thinking", True),), off=(("thinking", False),)),
    ),
    ReasoningDialect(
        name="deepseek_v4",
        aliases=("deepseek-v4", "deepseek_v41", "deepseek-v41"),
        open=("<think>",),
        close=("</think>",),
        after_open="",
        before_close="",
        after_close="",
        calls_inside=True,
        detect=(r"<｜Assistant｜>", r"</think>", r"reasoning_effort"),
        tokens=("｜DSML｜",),
        switch=ThinkingControl(
            on=(("thinking", True),),
            off=(("thinking", False),),
            effort="reasoning_effort",
            efforts=("low", "medium", "high", "max"),
        ),
    ),
)
