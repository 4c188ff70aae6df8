"""Laws of numbers in answers: a model that never stops writing digits is stopped, and nothing else is.

1. Whatever digits are preferred, a number ends, and it is finite.
2. Digits in texts, in regexes, and in literals of any length are left alone.
3. Undoing tokens undoes the count.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.constraints.digit_runs import DigitRun
from plumbline.engines.constraints.grammar import num_words

from .walk import ENDS, SIZE, builder, grammar_of, matcher, tokenizer

DIGITS = [tokenizer().encode_generated(str(digit))[-1] for digit in range(10)]


def greedy(grammar: str, begun: str, digit: int, most: int = 400) -> str:
    """The text of a model that writes this digit wherever it may, and an end or another token where it may not."""
    found = matcher(grammar)
    ids = list(tokenizer().encode_generated(begun)) if begun else []
    for token in ids:
        assert found.accept(token)
    row = np.zeros(num_words(SIZE), dtype=np.int32)
    for _ in range(most):
        found.mask_into(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        if bits[DIGITS[digit]]:
            token = DIGITS[digit]
        elif any(bits[end] for end in ENDS):
            break
        else:
            token = int(np.nonzero(bits)[0][0])
        assert found.accept(token)
        ids.append(token)
        if found.is_done:
            break
    return tokenizer().decode(ids) if hasattr(tokenizer(), "decode") else ""


@pytest.mark.parametrize(
    ("schema", "begun"),
    [
        ({"type": "integer"}, ""),
        ({"type": "number"}, "3."),
        ({"type": "number"}, "3e"),
        ({"type": "number"}, "-3.5E+"),
        ({}, ""),
        ({"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 1}, "["),
        ({"type": "integer", "minimum": 3}, ""),
    ],
)
@pytest.mark.parametrize("digit", [1, 9])
def test_a_number_ends_and_is_finite(schema: Any, begun: str, digit: int) -> None:
    grammar = grammar_of(schema)
    assert grammar is not None
    text = greedy(grammar, begun, digit)
    assert len(text) < 180
    value = json.loads(text)
    assert math.isfinite(value[0] if isinstance(value, list) else value)


def test_digits_of_texts_regexes_and_literals_are_left_alone() -> None:
    long = "7" * 200
    texts = grammar_of({"type": "string"})
    literal = grammar_of({"const": int(long)})
    built = builder()
    assert texts is not None
    assert literal is not None
    assert greedy(texts, '"', 7, most=300).count("7") == 300
    assert greedy(literal, "", 7) == long
    assert greedy(built.build(built.regex("[0-9]+")), "", 7, most=300).count("7") == 300


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b"12", b"e", b"+", b"1e", b".5"]), max_size=20))
def test_the_count_does_not_depend_on_the_cutting(tokens: list[bytes]) -> None:
    run = DigitRun()
    for token in tokens:
        run = run.after(token) if token else run
    text = b"".join(tokens)
    rest = text.rstrip(b"0123456789")
    assert run.num_digits == len(text) - len(rest)
    # The last two bytes before the digits, as far as digits before them are not written as 0.
    assert run.before[-1:] == rest[-1:]
