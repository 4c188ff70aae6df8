"""Looking for delimiters where they may begin finds what looking for them everywhere finds."""

from __future__ import annotations

from typing import Any

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.laws import EXAMPLES, EXPLORED

from plumbline.answer.dialects.parsers.response_templates.delimiters import (
    SPACE,
    Delimiter,
    Delimiters,
    Found,
    PatternHead,
    head,
)

laws = settings(max_examples=4 * EXPLORED or EXAMPLES)

_PIECES = (
    *(
        "a",
        "b",
        "ab",
        "<",
        "<a",
        " ",
        r"\|",
        r"\n",
        "\n",
        r"\s",
        r"\s*",
        r"\s+",
        r"\s*?",
        r"\w+",
        ".",
        "[ab]",
        "[^|(]",
    ),
    *(
        "a?",
        "b*",
        "<+",
        "a{2}",
        "a{e<=1}",
        "(?:a|b)",
        "(?:<a|b)",
        r"(?:\s*<|ab)",
        "(?:ab)?",
        "(?:)",
        "(?P<n>a+)",
    ),
    *(
        "(<)",
        "$",
        "^",
        "|",
        "(?=b)",
        "(?<=a)",
        "(?i)",
        "(?x) ",
        r"\K",
        r"\b",
        "(?i:a)",
        "[[]",
        "[(]",
        r"\(",
        "(?:a|)",
    ),
)


patterns = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=4).map("".join)
headed = st.tuples(st.sampled_from(["", r"\s*"]), st.text("<a", min_size=1, max_size=3)).map("".join)
literals = st.lists(st.text("ab<", min_size=1, max_size=3), min_size=1, max_size=3, unique=True)
fields = st.sampled_from(["content", None])
sources = st.lists(st.tuples(literals | patterns | headed, fields), min_size=1, max_size=3)
texts = st.text("ab<| \n\xa0\x1c(AB", max_size=8) | st.text("<a ", max_size=5)


def compiled(source: list[str] | str, field: str | None) -> Delimiter | None:
    """A delimiter of these literals or of this pattern, if it is one, as transformers compiles it."""
    if isinstance(source, list):
        pattern = "|".join(map(regex.escape, sorted(source, key=len, reverse=True)))
        grows = any(a != b and a.startswith(b) for a in source for b in source)
        return Delimiter(regex.compile(pattern), PatternHead(tuple(source), False), not grows, field)
    try:
        return Delimiter(regex.compile(source, regex.DOTALL), head(source), False, field)
    except regex.error:
        return None


def everywhere(delimiters: list[Delimiter], text: str, pos: int, closed: bool) -> tuple[int, Any, str | None]:
    """What transformers' own parser looks for, with the same rules of what is certain."""
    hold, found = len(text), []
    for number, (pattern, _, settled, field) in enumerate(delimiters):
        match = pattern.search(text, pos) if closed else pattern.search(text, pos, partial=True)
        if match is None:
            continue
        may_grow = match.end() == len(text) and (match.start() == match.end() or not settled)
        if not closed and (match.partial or may_grow):
            hold = min(hold, match.start())
        else:
            found.append((match.start(), -match.end(), field is None, number, match.span()))
    if not found or (min(found)[0] >= hold and not closed):
        return hold, None, None
    best = min(found)
    return best[0], best[-1], delimiters[best[3]].field


@laws
@given(sources, texts, st.integers(0, 8), st.booleans())
@example([(r"\s*<", None), (["<<a"], "content")], " <<", 0, False)
@example([(r"(?:\s*<|ab)", "content")], " a", 0, False)
@example([(r"\s+(?:<a|b)", "content")], "<", 0, False)
@example([(r"\s*<", "content"), (["<"], "content"), ([" "], "content")], " <", 0, False)
def test_what_is_passed_over_has_no_delimiter(
    sources: list[tuple[list[str] | str, str | None]], text: str, pos: int, closed: bool
) -> None:
    pos = min(pos, len(text))
    delimiters = list(filter(None, (compiled(*source) for source in sources)))
    end, match, field = Delimiters(delimiters).search(text, pos, closed=closed)
    found: Found = end, match and match.span(), field
    assert found == everywhere(delimiters, text, pos, closed)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"\s*<call>", PatternHead(("<call>",), True)),
        (r"\s*(?:<\|end\|>|<\|eot\|>)", PatternHead(("<|end|>", "<|eot|>"), True)),
        (r"<fn=(?P<name>\w+)>", PatternHead(("<fn=",), False)),
        (r"<a|\s+b", None),
        ("</fn>\\s*\n?", PatternHead(("</fn>",), False)),
        ("ab?c", PatternHead(("a",), False)),
        (r"\s*(?:<eot>|$)", None),
        (r"\s+<eot>", None),
        ("(?i)<think>", None),
        ("[<]a", None),
    ],
)
def test_most_patterns_begin_with_a_text(pattern: str, found: PatternHead | None) -> None:
    assert head(pattern) == found


def test_white_space_is_that_of_the_patterns() -> None:
    assert set(SPACE) == set(regex.findall(r"\s", "".join(map(chr, range(0x110000)))))
