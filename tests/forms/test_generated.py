"""Schemas like those of real programs: valid documents go through, invalid ones never do, what is drawn is valid."""

from __future__ import annotations

import json
import os
from typing import Any

import jsonschema_rs
import pytest

from .generated import sample
from .test_keywords import finite
from .walk import accepts, grammar_of, sampled, written

COUNT = int(os.environ.get("PLUMBLINE_SCHEMAS", "60"))
"""How many schemas; `nox -s properties` asks for many more."""

HELD_AT_LEAST = 0.97


def examine(seed: int) -> bool:
    """Assert the laws for one schema; whether it is held."""
    schema, valid, broken = sample(seed)
    validator: Any = jsonschema_rs.validator_for(schema, validate_formats=True)
    assert all(validator.is_valid(value) for value in valid), (seed, schema)
    grammar = grammar_of(schema)
    if grammar is None:
        return False
    for value in valid:
        assert accepts(grammar, written(value, spaces=bool(seed % 2))), (seed, value)
    for value in broken:
        if not validator.is_valid(value):
            assert not accepts(grammar, written(value)), (seed, value)
    for number in range(2):
        text = sampled(grammar, seed * 10 + number, limit=40, most=400)
        if text is not None:
            assert validator.is_valid(finite(json.loads(text))), (seed, text)
    return True


@pytest.mark.parametrize("part", range(10))
def test_no_invalid_document_goes_through(part: int) -> None:
    held = [examine(seed) for seed in range(part, COUNT, 10)]
    assert sum(held) >= HELD_AT_LEAST * len(held) - 1
