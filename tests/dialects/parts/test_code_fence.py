"""Fences of code: the same in every cut, as a reader of whole lines finds them, and no call begins within them."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.about import about
from support.parsing.dialects import fold, kept_dialect

from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.streams.code_fence import CodeFence
from plumbline.answer.events import TextDelta

PIECES = st.sampled_from(["```", "`", "````", "xml", " ", "\n", "\n", "a", "\t"])
CALL = "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>"
TOOLS = {"get_weather": {"type": "object", "properties": {"city": {"type": "string"}}}}


def is_open(text: str) -> bool:
    """Return whether a fence is open behind a text, line by line."""
    found = False
    for line in text.split("\n")[:-1]:
        line = line.lstrip(" \t\r")
        behind = line.lstrip("`")
        if line.startswith("```"):
            found = bool(behind.strip()) if found else "`" not in behind
    return found


@given(st.lists(PIECES, max_size=30))
def test_fences_are_those_of_whole_lines_in_every_cut(pieces: list[str]) -> None:
    text = "".join(pieces)
    for cut in (pieces, list(text), [text]):
        fence = CodeFence()
        for piece in cut:
            fence.read(piece)
        assert fence.is_open is is_open(text)


def read(name: str, text: str, size: int) -> tuple[str, list[str]]:
    parser = kept_dialect(TOOL_DIALECTS[name]).parser(tools=TOOLS)
    events: list[Any] = []
    for place in range(0, len(text), size):
        events += parser.push(TextDelta(text[place : place + size]))
    found = fold([*events, *parser.finish("stop")])
    return found.content, [call.name for call in found.calls]


@cache
def bare_readers() -> list[str]:
    """The dialects that read this call without a marker before it, at the beginning of a line."""
    return [name for name in TOOL_DIALECTS if read(name, CALL, 1)[1] and not read(name, f"Say {CALL}", 1)[1]]


def test_a_call_that_a_fence_quotes_is_text() -> None:
    for name in bare_readers():
        for quoted in (
            f"So:\n```xml\n{CALL}\n```\nDone.",
            f"```\n{CALL}\n{CALL}\n```",
            f"So:\n```\nx\n\n{CALL}\n```",
        ):
            for size in (1, 3, len(quoted)):
                with about((name, quoted, size)):
                    assert read(name, quoted, size) == (quoted, [])


def test_a_call_behind_a_fence_is_a_call() -> None:
    for name in bare_readers():
        for text in ("```sh\nls\n```\n", "```one line```\n", "`quoted`\n", "Text.\n"):
            for size in (1, 3, 500):
                with about((name, text, size)):
                    assert read(name, text + CALL, size)[1] == ["get_weather"]


def test_some_dialects_read_bare_calls() -> None:
    assert {"hermes", "qwen3_coder"} <= set(bare_readers())
