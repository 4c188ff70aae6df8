"""GBNF becomes a Lark grammar of the same texts.

Laws:
    1. The translation of a grammar accepts a text if and only if the grammar does.
    2. A character written as a code point is that character, in strings and in classes.
    3. What is no GBNF, or too large, is a `ConstraintError`, in bounded time.
"""

from __future__ import annotations

import re

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.gbnf import is_gbnf, to_lark

TOKENIZER = llguidance.LLTokenizer("byte")


def accepts(lark: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(TOKENIZER, llguidance.grammar_from("lark", lark))
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


LETTERS = st.sampled_from("ab^-]\\é")


def escaped(letter: str, how: str) -> str:
    return letter if how == "plain" and letter.isalpha() else f"\\u{ord(letter):04x}"


@st.composite
def grammars(draw: st.DrawFn) -> tuple[str, str]:
    """A sequence of repeated strings and classes, and the same as a Python regex."""
    gbnf, regex = [], []
    for _ in range(draw(st.integers(1, 4))):
        letters = draw(st.lists(LETTERS, min_size=1, max_size=3))
        written = "".join(escaped(letter, draw(st.sampled_from(["plain", "code"]))) for letter in letters)
        repeat = draw(st.sampled_from(["", "*", "?", "{1,2}"]))
        if draw(st.booleans()):
            gbnf.append(f"[{written}]{repeat}")
            regex.append("[" + "".join(map(re.escape, letters)) + f"]{repeat}")
        else:
            gbnf.append(f'("{written}"){repeat}')
            regex.append(f"(?:{re.escape(''.join(letters))}){repeat}")
    return "root ::= part\npart ::= " + " ".join(gbnf), "".join(regex)


@given(grammars(), st.text(LETTERS, max_size=6))
@settings(max_examples=EXPLORED or 80, deadline=None)
def test_the_translation_accepts_the_same_texts(both: tuple[str, str], text: str) -> None:
    gbnf, regex = both

    assert is_gbnf(gbnf)
    assert accepts(to_lark(gbnf), text) == (re.fullmatch(regex, text) is not None)


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        "root",
        'x ::= "a"',
        "root ::= missing",
        'root ::= "a" [',
        'root ::= "\\q"',
        'root ::= "\\ud800"',
        "root ::= " + "(" * 5000,
        "root ::= a" + "\na ::= b" * 501,
        'root ::= "' + "x" * 70000 + '"',
        'root ::= "a"\nstart ::= "b"',
    ],
)
def test_what_cannot_be_translated_is_refused(grammar: str) -> None:
    with pytest.raises(ConstraintError):
        to_lark(grammar)


@pytest.mark.parametrize("grammar", ["start: /a/", 'start: "x ::= y"', "%llguidance {}\nstart: a\na: /b/"])
def test_lark_is_not_taken_for_gbnf(grammar: str) -> None:
    assert not is_gbnf(grammar)


def test_alternatives_may_begin_lines() -> None:
    lark = to_lark('root ::= "a" # one | two\n\n  | "|\\n#" # three\n| [|#]\nb ::= "b"\n')
    assert all(accepts(lark, text) for text in ("a", "|\n#", "|", "#"))
    assert not any(accepts(lark, text) for text in ("b", "", "a|"))
