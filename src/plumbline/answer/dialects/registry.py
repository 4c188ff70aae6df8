"""Find dialects by name, and choose the dialects of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from plumbline.answer.dialects.families import (
    arrays,
    blocks,
    deepseek,
    glm,
    google,
    kimi,
    llama,
    minimax,
    mistral,
    muse,
    openai,
    qwen,
    step,
)
from plumbline.answer.dialects.parsers.response_templates.response_template import ResponseTemplate
from plumbline.answer.dialects.spec.dialect import (
    PromptEncoding,
    ReasoningDialect,
    ThinkingControl,
    ToolDialect,
)
from plumbline.answer.dialects.variant import ShowCall, choose_variant, dialects_of_example

__all__ = [
    "GENERIC",
    "REASONING_DIALECTS",
    "TOOL_DIALECTS",
    "DialectChoice",
    "UnknownDialectError",
    "choose",
    "matching",
]

_FAMILIES: Final = (
    qwen,
    mistral,
    llama,
    deepseek,
    kimi,
    glm,
    openai,
    google,
    minimax,
    arrays,
    step,
    blocks,
    muse,
)
_LONGEST_NAME = 64
"""Characters of an unknown name that are compared with the known ones."""
_TOOLS: Final[tuple[ToolDialect, ...]] = tuple(dialect for family in _FAMILIES for dialect in family.TOOLS)
_REASONING: Final[tuple[ReasoningDialect, ...]] = tuple(
    dialect for family in _FAMILIES for dialect in family.REASONING
)

HF_NAMES: Final = ("hf", "response_template")
"""Names of `--tool-parser` and `--reasoning-parser` for the tokenizer's response template."""

T = TypeVar("T")
D = TypeVar("D", ToolDialect, ReasoningDialect)


class UnknownDialectError(ValueError):
    """No dialect has this name. The message lists the names.

    Args:
        option: the option of `plumbline serve` with the name.
        problem: what is wrong and what to do, to follow the option.
    """

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"{option} {problem}")
        self.option = option
        self.problem = problem


class DialectChoice(msgspec.Struct, frozen=True):
    """The dialects of a served model, and why they were chosen."""

    tool: ToolDialect | None
    reasoning: ReasoningDialect | None
    tool_reason: str = ""
    """`given`, how it was detected, `none detected`, or why it could not be another."""
    reasoning_reason: str = ""
    response_template: ResponseTemplate | None = None
    """The tokenizer's response template, if answers are parsed by it."""

    @property
    def thinking_control(self) -> ThinkingControl | None:
        """How thinking is turned on, off, up and down; None if the model has no reasoning dialect."""
        return None if self.reasoning is None else self.reasoning.switch

    @property
    def prompt_encoding(self) -> PromptEncoding | None:
        """How prompts are encoded if the model comes without a chat template; None if that is not known."""
        dialects = [dialect for dialect in (self.reasoning, self.tool) if dialect is not None]
        return next((dialect.prompt_encoding for dialect in dialects if dialect.prompt_encoding), None)

    def describe(self) -> str:
        """Return the line that the server prints at its start."""
        nothing = "none" if self.response_template is None else HF_NAMES[0]
        tool = self.tool.name if self.tool is not None else nothing
        reasoning = self.reasoning.name if self.reasoning is not None else nothing
        return (
            f"Tool calls are read as {tool} ({self.tool_reason}; --tool-parser), "
            f"reasoning as {reasoning} ({self.reasoning_reason}; --reasoning-parser)"
        )


def _unique(pairs: list[tuple[str, T]]) -> dict[str, T]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RuntimeError("two dialects have the same name")
    return found


TOOL_DIALECTS: Final[Mapping[str, ToolDialect]] = _unique(
    [(name, dialect) for dialect in _TOOLS for name in (dialect.name, *dialect.aliases)]
)
"""By name and alias."""
REASONING_DIALECTS: Final[Mapping[str, ReasoningDialect]] = _unique(
    [(name, dialect) for dialect in _REASONING for name in (dialect.name, *dialect.aliases)]
)
"""By name and alias."""
GENERIC: Final = TOOL_DIALECTS["hermes"]
"""The dialect for a chat template without a place for tools: most models know it, and no text begins like its calls."""


def choose(
    template: str,
    *,
    tool: str = "auto",
    reasoning: str = "auto",
    response_template: Mapping[str, Any] | None = None,
    added_tokens: Collection[str] = (),
    show_call: ShowCall | None = None,
) -> DialectChoice:
    """Choose the dialects of a model.

    Args:
        template: the source of its chat template; empty if the model has no template.
        tool: a name, `none`, or `auto` for the dialect that reads the call in a turn that the template renders, or else
            the one with marks in the template, or else the one with marks among the added tokens.
        reasoning: the same for thinking. Harmony brings its own thinking, also where this is `none`.
        response_template: the tokenizer's, if it has one. It is used where no dialect is detected, or if chosen by its
            name `hf`, and then for calls and thinking.
        added_tokens: the texts of the tokenizer's added tokens. They count only where the template matches no dialect,
            because many tokenizers have tokens that their models never write.
        show_call: renders a call with the template; see `choose_variant` and `dialects_of_example`.

    Raises:
        UnknownDialectError: no dialect has that name.
        BadResponseTemplateError: the response template cannot be used.
    """
    given = {tool, reasoning} & {*HF_NAMES}
    if given:
        if response_template is None:
            raise UnknownDialectError(
                "--tool-parser" if tool in HF_NAMES else "--reasoning-parser",
                f"is {given.pop()!r}, which needs a response_template in tokenizer_config.json: give another name",
            )
        return DialectChoice(None, None, "given", "given", ResponseTemplate(response_template))
    found_tool, tool_reason = _chosen(
        TOOL_DIALECTS, "--tool-parser", tool, template, added_tokens, partial(_shown, show_call)
    )
    found_reasoning, reasoning_reason = _chosen(
        REASONING_DIALECTS, "--reasoning-parser", reasoning, template, added_tokens
    )
    if response_template is not None and found_tool is None and tool == reasoning == "auto":
        return DialectChoice(None, None, "detected", "detected", ResponseTemplate(response_template))
    if found_tool is not None and found_tool.messages and found_reasoning is None:
        # A parser that reads only a part of the messages takes the headers of the others for text.
        found_reasoning, reasoning_reason = REASONING_DIALECTS[found_tool.name], "its messages hold both"
    if found_tool is not None:
        found_tool = choose_variant(
            found_tool, template=template, added_tokens=added_tokens, show_call=show_call
        )
    return DialectChoice(found_tool, found_reasoning, tool_reason, reasoning_reason)


def matching(
    dialects: Mapping[str, D],
    template: str,
    added_tokens: Collection[str] = (),
    shown: Callable[[], list[D]] = list,
) -> list[D]:
    """List the dialects that may be a model's, the likeliest first.

    What the template writes counts more than what stands in its source: first those that read the call that it renders,
    else those that match the source, else those whose tokens the tokenizer has, else those that many families share.

    Args:
        dialects: by name.
        template: the source of the template.
        added_tokens: a dialect with tokens matches if all of them are among these.
        shown: returns the dialects that read a rendered call equally well.
    """
    each = dict.fromkeys(dialects.values())
    written = sorted((d for d in each if _matches(d, template)), key=_rank)
    read = shown()
    return (
        [d for d in written if d in read]
        or read
        or [d for d in written if d.generality < 2]
        or [d for d in each if d.tokens and all(token in added_tokens for token in d.tokens)]
        or written
    )


def _shown(show_call: ShowCall | None) -> list[ToolDialect]:
    """Return the dialects of the call that a template renders."""
    text = "" if show_call is None else show_call("abcdefghi")
    return dialects_of_example([d for d in _TOOLS if d.detect], text) if text else []


def _matches(dialect: ToolDialect | ReasoningDialect, template: str) -> bool:
    return bool(dialect.detect) and all(re.search(pattern, template) for pattern in dialect.detect)


def _rank(dialect: ToolDialect | ReasoningDialect) -> tuple[int, int, int]:
    """Order dialects that match a template, the one that asks most of it first."""
    return dialect.generality, -len(dialect.detect), -sum(map(len, dialect.detect))


def _chosen(
    dialects: Mapping[str, D],
    option: str,
    name: str,
    template: str,
    added_tokens: Collection[str],
    shown: Callable[[], list[D]] = list,
) -> tuple[D | None, str]:
    if name == "none":
        return None, "given"
    if name != "auto":
        if name not in dialects:
            names = sorted({*dialects, *HF_NAMES})
            near = get_close_matches(name[:_LONGEST_NAME], names, 1, 0.75)
            hint = f" (did you mean {near[0]}?)" if near else f": {', '.join(names)}"
            raise UnknownDialectError(
                option, f"must be auto, none or one of {len(names)} dialects, got {name!r}{hint}"
            )
        return dialects[name], "given"
    found = matching(dialects, template, added_tokens, shown)
    if not found:
        return None, "none detected"
    by_template = _matches(found[0], template)
    return found[
        0
    ], f"detected {'in the chat template' if by_template else 'by a rendered call or by tokens'}"
