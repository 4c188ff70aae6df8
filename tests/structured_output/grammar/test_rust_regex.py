"""Laws of the parser of Rust regexes.

- A character class knows exactly those characters that it matches and JSON escapes.
- A text as a regex matches its own JSON spelling, character by character.
- Parsing the joined pieces again gives the same pieces.
- Features that cannot be rewritten are refused by name.
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.rust_regex import OneOf, Piece, escaped_piece, literal, pieces

ESCAPED = '"\\\n\r\t\b\f'
"""The characters with a short escape in JSON."""
members = st.sampled_from(
    [*"abz09 ", '"', r"\\", r"\n", r"\t", r"\r", r"\f", r"\d", r"\s", r"\w", "a-z", r"\t-\r"]
)
classes = st.tuples(st.sampled_from(["[", "[^"]), st.lists(members, min_size=1, max_size=5)).map(
    lambda parts: f"{parts[0]}{''.join(parts[1])}]"
)
atoms = st.sampled_from(["a", '"', r"\n", r"\\", ".", r"\d", "/"]) | classes
regexes = st.recursive(
    atoms,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2,3}"])).map(lambda two: f"(?:{two[0]}){two[1]}")
    ),
    max_leaves=6,
)


def joined(found: list[Piece]) -> str:
    return "".join(piece if isinstance(piece, str) else f"[{piece.inside}]" for piece in found)


@given(classes)
def test_a_class_knows_which_escaped_characters_it_matches(text: str) -> None:
    (piece,) = pieces(text)

    assert isinstance(piece, OneOf)
    # Python's `re` agrees with Rust on these classes for ASCII.
    assert piece.escaped == {char for char in ESCAPED if re.fullmatch(text, char, re.ASCII)}


@given(st.text('ab"\\\n\t/[.*é🎉', max_size=8))
def test_a_literal_matches_its_own_json_spelling(text: str) -> None:
    written = "".join(escaped_piece(piece) for piece in literal(text) if isinstance(piece, OneOf))
    # Python has no `\x{...}`, and `(?-i:...)` is a plain group without case folding.
    python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda code: re.escape(chr(int(code[1], 16))), written)
    python = python.replace("(?-i:", "(?:")

    assert re.fullmatch(python, json.dumps(text, ensure_ascii=False)[1:-1])


@given(regexes)
def test_parsing_the_joined_pieces_again_changes_nothing(regex: str) -> None:
    found = pieces(regex)
    again = pieces(joined(found))

    assert [p if isinstance(p, str) else p.escaped for p in again] == [
        p if isinstance(p, str) else p.escaped for p in found
    ]


@pytest.mark.parametrize("regex", ["^a", "a$", "^a$", "^(?:a|b)$"])
def test_anchors_at_the_ends_have_no_effect(regex: str) -> None:
    assert joined(pieces(regex)) == joined(pieces(regex.strip("^$")))


@pytest.mark.parametrize(
    "regex",
    [
        "a^b",
        "a$b",
        "^a|b",
        r"\bword",
        "(?=a)",
        "(?<!a)b",
        r"(a)\1",
        "(?x:a)",
        r"\p{Greek}",
        "[a",
        "(a",
        r"\q",
    ],
)
def test_features_that_cannot_be_rewritten_are_refused(regex: str) -> None:
    with pytest.raises(ConstraintError):
        pieces(regex)
