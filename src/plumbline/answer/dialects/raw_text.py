"""Read the calls in the raw text of a model, without its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import choose
from plumbline.answer.events import TextDelta, ToolCallDelta, ToolCallStart

__all__ = ["raw_text_reader"]


def raw_text_reader(
    tool: str, reasoning: str, template: str
) -> Callable[[str, Sequence[Any]], list[tuple[str, str]]] | None:
    """Return what reads raw texts of a model, given the tools of a request, as names and arguments.

    Args:
        tool: the name of the dialect of calls, or `auto` for that of the template.
        reasoning: the same for thinking.
        template: the chat template.

    Returns:
        The reader; None if the model has no known dialect of calls.

    Raises:
        UnknownDialectError: no dialect has that name.
    """
    dialect = build_dialect(choose(template, tool=tool, reasoning=reasoning))
    if dialect.choice.tool is None:
        return None

    def read(text: str, tools: Sequence[Any]) -> list[tuple[str, str]]:
        parser = dialect.parser(_parameters(tools), dialect.frame(()))
        calls: list[tuple[str, list[str]]] = []
        for event in (*parser.push(TextDelta(text)), *parser.finish("stop")):
            match event:
                case ToolCallStart():
                    calls.append((event.name, []))
                case ToolCallDelta():
                    calls[-1][1].append(event.arguments)
        return [(name, "".join(parts)) for name, parts in calls]

    return read


def _parameters(tools: Sequence[Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the parameters of the functions among the tools of a chat completion."""
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
    return {
        function["name"]: function.get("parameters") or {}
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }
