"""Laws of the translation of ECMA-262 regexes.

- A backslash before a character other than a letter or a digit means that character, also inside a class.
- Two halves of a surrogate pair are one character.
- A class allows an escape of JSON exactly if it has the character.
- A brace that begins no quantifier is a character (ECMA-262, B.1.2).
"""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structured_output.walk import accepts, as_json_text, builder, grammar_and_notes, grammar_of

from plumbline.answer.structured_output.grammar.ecma_regex import to_rust_regex
from plumbline.answer.structured_output.grammar.errors import ConstraintError

CHARACTERS = string.punctuation + " ßÖ中€"


def grammar_of_pattern(pattern: str) -> str:
    grammar = grammar_of({"type": "string", "pattern": pattern})
    assert grammar is not None, pattern
    return grammar


def test_a_backslash_means_the_character_after_it() -> None:
    escaped = "".join(f"\\{char}" for char in CHARACTERS)
    assert accepts(grammar_of_pattern(f"^{escaped}$"), as_json_text(CHARACTERS))
    one_of, none_of = grammar_of_pattern(f"^[{escaped}]$"), grammar_of_pattern(f"^[^{escaped}]$")
    for char in CHARACTERS:
        assert accepts(one_of, as_json_text(char)), char
        assert not accepts(none_of, as_json_text(char)), char
    for char in "aA0üx":
        assert not accepts(one_of, as_json_text(char)), char
        assert accepts(none_of, as_json_text(char)), char


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^\(?[0-9]{3}\)?$", ("(030)", "030"), ("((030", "03")),
        (r"^\(?=1$", ("(=1", "=1"), ("1",)),
        (r"^[(?!<]$", ("(", "?", "!", "<"), ("", "a")),
        (r"^a\[]$", ("a[]",), ("a", "a[")),
        (r"^[[]]$", ("[]",), ("[", "[[")),
    ],
)
def test_an_escaped_or_listed_bracket_begins_no_group_and_no_class(
    pattern: str, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    grammar = grammar_of_pattern(pattern)
    assert all(accepts(grammar, as_json_text(text)) for text in right)
    assert not any(accepts(grammar, as_json_text(text)) for text in wrong)


@pytest.mark.parametrize(
    "piece", [r"\0", "\x01", r"\x01", r"\v", r"\u0000", r"\u{7f}", r"[\0]", r"[\x01\x01]"]
)
def test_a_character_that_no_text_can_have_is_not_left_out(piece: str) -> None:
    assert grammar_of({"type": "string", "pattern": f"^{piece}b$"}) is None
    grammar = grammar_of_pattern(f"^(?:{piece}b|c{piece}?)$")
    assert accepts(grammar, as_json_text("c"))
    assert not accepts(grammar, as_json_text("b"))


@pytest.mark.parametrize("pattern", [r"\07", r"[^\00-9]"])
def test_octal_escapes_are_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError, match="octal"):
        to_rust_regex(pattern)


@pytest.mark.parametrize("pattern", ["a(?=b)", "(?<!a)b", "(?i)a", "(?", "a[]", "[^]"])
def test_what_the_engine_lacks_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError, match="look-around"):
        to_rust_regex(pattern)


_members = st.sampled_from(
    [
        '"',
        r"\\",
        r"\n",
        r"\t",
        r"\x00-\x1f",
        r"\x00-!",
        "#-~",
        r"\u0000-\u00ff",
        r"\s",
        r"\S",
        r"\W",
        "a-z",
        r"\]",
        "/",
    ]
)


@settings(max_examples=60)
@given(st.sampled_from(("", "^")), st.lists(_members, min_size=1, max_size=3))
def test_a_class_allows_an_escape_exactly_if_it_has_the_character(negated: str, members: list[str]) -> None:
    inside = f"[{negated}{''.join(members)}]"
    grammar = grammar_of({"type": "string", "pattern": f"^x{inside}$"})
    if grammar is None:  # Nothing that can be written is left.
        return
    for char in '"\\\n\r\t\b\fa/ ':
        assert accepts(grammar, as_json_text(f"x{char}")) == bool(re.fullmatch(inside, char, re.ASCII)), char


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        (r"^\ud83d\ude00$", ["😀"], ["a"]),
        (r"^[\ud83d\ude00-\ud83d\ude04]$", ["😀", "😂"], ["😎"]),
        ("^{$", ["{"], ["a"]),
        ("^{a}$", ["{a}"], ["a"]),
        ("^a{2}{b$", ["aa{b"], ["a{2}{b"]),
        ("^[{}]{2}$", ["{}"], ["{"]),
        ("^a{1,}}$", ["aa}"], ["a"]),
    ],
)
def test_braces_and_surrogates(pattern: str, valid: list[str], invalid: list[str]) -> None:
    grammar = grammar_of_pattern(pattern)
    assert all(accepts(grammar, as_json_text(text)) for text in valid)
    assert not any(accepts(grammar, as_json_text(text)) for text in invalid)


@pytest.mark.parametrize("pattern", [r"\<a\>", r"a{,2}\Z", r"[\<{,3}]", r"\\<", r"\[{,2}"])
def test_a_regex_of_a_request_means_what_it_means_to_python(pattern: str) -> None:
    built = builder()
    grammar = built.build(built.regex(pattern))
    for text in ("<a>", "a", "aa", "aaa", "<", "{", "3", "0", "\\<", "[", "[[", "\\", ""):
        assert accepts(grammar, text) == bool(re.fullmatch(pattern, text)), text


def test_a_quantifier_without_a_lower_bound_has_two_meanings_and_is_refused() -> None:
    with pytest.raises(ConstraintError, match="lower bound"):
        to_rust_regex("^a{,2}$")


def test_conditions_that_the_engine_cannot_intersect_are_named() -> None:
    pattern = r"^(?=.*[\p{L}\p{N}\p{S}\p{P}\d])[\p{L}\p{N}\p{S}\p{P}\d]{8,}"
    schema = {"type": "string", "maxLength": 512, "pattern": pattern}
    grammar, notes = grammar_and_notes(schema, relaxed=True)
    assert grammar is not None
    assert notes == ["#/pattern"]
    assert accepts(grammar, '"abcdefgh"')
    assert not accepts(grammar, as_json_text("a" * 513))
    assert grammar_and_notes(schema)[0] is None


def test_an_empty_enum_means_none_unless_the_schema_is_strict() -> None:
    schema = {"properties": {"a": {"type": "string", "enum": []}}, "required": ["a"]}
    grammar, notes = grammar_and_notes(schema, relaxed=True)
    assert grammar is not None
    assert notes == ["#/properties/a/enum"]
    assert accepts(grammar, '{"a":"x"}')
    strict = grammar_of(schema)
    assert strict is not None
    assert not accepts(strict, '{"a":"x"}')
