"""Schemas like those of real programs: valid documents go through, invalid ones never do, what is drawn is valid."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from support.laws import EXPLORED, FIRST_SEED

from .generated import sample
from .test_keywords import finite
from .walk import accepts, as_json_text, grammar_of, sampled

COUNT = max(80, EXPLORED * 3 // 20)
"""How many schemas; 3,000 in `nox -s properties`."""


def examine(seed: int) -> None:
    """Assert the laws for one schema."""
    schema, valid, broken = sample(seed)
    validator: Any = jsonschema_rs.validator_for(schema, validate_formats=True)
    assert all(validator.is_valid(value) for value in valid), (seed, schema)
    grammar = grammar_of(schema)
    assert grammar is not None, (
        seed,
        schema,
    )  # docs/reference/structured-output.md says that none is refused.
    for value in valid:
        assert accepts(grammar, as_json_text(value, spaces=bool(seed % 2))), (seed, value)
    for value in broken:
        if not validator.is_valid(value):
            assert not accepts(grammar, as_json_text(value)), (seed, value)
    for number in range(2):
        text = sampled(grammar, seed * 10 + number, limit=40, most=400)
        if text is not None:
            assert validator.is_valid(finite(json.loads(text))), (seed, text)


@pytest.mark.sampled
@pytest.mark.parametrize("part", range(10))
def test_no_invalid_document_goes_through(part: int) -> None:
    for number in range(part, COUNT, 10):
        examine(FIRST_SEED + number)
