"""Laws of the parser of Lark grammars.

- Comments, blank lines and line breaks between alternatives do not change a grammar.
- Different notations of one expression are parsed alike.
- Every name that a rule refers to is defined, or the grammar is refused.
- Unsupported features are refused.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.lark import named_in, read_lark

GRAMMAR = 'start: item ("," item)*\nitem: WORD | "(" start ")"\nWORD: /[a-z]+/\n%ignore " "'
lines = st.sampled_from(["\n", "\n\n", "\n// a comment\n", "  // a comment\n", "\n   \n"])


@given(st.lists(lines, min_size=3, max_size=3))
def test_comments_and_blank_lines_change_nothing(breaks: list[str]) -> None:
    first, *rest = GRAMMAR.split("\n")
    text = first + "".join(gap + line for gap, line in zip(breaks, rest, strict=True))

    assert read_lark(text) == read_lark(GRAMMAR)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('start: "a"~2', 'start: "a"{2,2}'),
        ('start: "a"~2..3', 'start: "a"{2,3}'),
        ('start: ["a"]', 'start: ("a")?'),
        ('start: "a"\n  | "b"', 'start: "a" | "b"'),
        ('start: "a" -> alias', 'start: "a"'),
        ('?start: "a"', 'start: "a"'),
        ('?!start: A\n!A.2: "a"\n', 'start: A\nA: "a"\n'),
        ('start: ("a")', 'start: "a"'),
        ('start: "\\u0061"', 'start: "a"'),
    ],
)
def test_notations_of_one_expression_are_parsed_alike(one: str, other: str) -> None:
    first, second = read_lark(one), read_lark(other)

    assert [first.of[name] for name in first.of] == [second.of[name] for name in second.of]


def test_every_name_that_a_rule_refers_to_is_defined() -> None:
    rules = read_lark(GRAMMAR)

    assert set(rules.of) == {"start", "item", "WORD"}
    assert {name for expression in rules.of.values() for name in named_in(expression)} <= set(rules.of)
    assert len(rules.ignored) == 1


@given(st.sampled_from(["other", "OTHER", "_other"]))
def test_a_name_without_a_definition_is_refused(name: str) -> None:
    with pytest.raises(ConstraintError):
        read_lark(f'start: "a" {name}')


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        'other: "a"',
        'start: "a',
        "start: /a",
        'start: ("a"',
        'start: "a" | )',
        'start[lazy]: "a"',
        'start: x{"a"}\nx{y}: y',
        "start: <|special|>",
        "start: %json {}",
        "start: @nested",
        "%import python.NAME\nstart: NAME",
        "%declare X\nstart: X",
        'start: "a"\nstart: "b"',
    ],
)
def test_invalid_and_unsupported_grammars_are_refused(grammar: str) -> None:
    with pytest.raises(ConstraintError):
        read_lark(grammar)
