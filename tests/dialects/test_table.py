"""The tables of dialects in the documentation match the code."""

from __future__ import annotations

import re
from pathlib import Path

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, ToolDialect, Utterance

_DOCS = (Path(__file__).parents[2] / "docs" / "explanation" / "dialects.md").read_text("utf-8").splitlines()


def _code(text: str) -> str:
    """Text as it stands in a cell: line ends are shown, and the column separator is escaped."""
    if not text:
        return ""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{space}{text.replace(chr(10), '⏎').replace('|', chr(92) + '|')}{space}{fence}"


def tool_row(dialect: ToolDialect) -> str:
    """The row of a tool dialect."""
    call = WrittenCall("f", '{"a": "x", "n": 1}')
    written = build_dialect(DialectChoice(dialect, None)).render(Utterance((call,)))
    aliases = ", ".join(dialect.aliases)
    forbidden = ", ".join(map(_code, dialect.sections[0].call_format.forbidden))
    return f"| {dialect.name} | {aliases} | {_code(written)} | {forbidden} |"


def reasoning_row(dialect: ReasoningDialect) -> str:
    """The row of a reasoning dialect."""
    switch = dialect.switch
    off = ", ".join(f"{name}={value}" for name, value in switch.off)
    more = ", ".join(name for name in (switch.effort, switch.budget) if name)
    begins = "inside" if dialect.starts_inside else ""
    cells = (
        dialect.name,
        ", ".join(dialect.aliases),
        " … ".join((_code(dialect.open[0]), _code(dialect.close[0]))),
        begins,
        off,
        more,
    )
    return f"| {' | '.join(cells)} |"


def test_the_table_has_the_row_of_every_dialect_and_no_other() -> None:
    expected = {
        *map(tool_row, dict.fromkeys(TOOL_DIALECTS.values())),
        *map(reasoning_row, dict.fromkeys(REASONING_DIALECTS.values())),
    }
    tables = _DOCS[_DOCS.index("## Tool dialects") : _DOCS.index("## Adding one")]
    rows = [line for line in tables if line.startswith("| ") and not line.startswith("| dialect")]
    assert sorted(rows) == sorted(expected)
