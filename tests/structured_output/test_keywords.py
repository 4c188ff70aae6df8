"""Each keyword of JSON Schema is enforced or refused: no valid document is excluded, no invalid one is allowed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
from support.about import about

from .corpus import CASES
from .walk import accepts, as_json_text, grammar_and_notes, grammar_of, sampled

DOC = Path(__file__).parents[2] / "docs" / "reference" / "structured-output.md"


def oracle(schema: Any) -> Any:
    """An independent implementation; None where it does not take the schema either."""
    try:
        return jsonschema_rs.validator_for(schema, validate_formats=True)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None


def test_the_oracle_agrees_with_the_corpus() -> None:
    for keyword, schema, valid, invalid in CASES:
        with about((keyword, schema)):
            validator = oracle(schema)
            if validator is None or keyword == "$ref, only itself":
                assert not valid
                continue
            assert all(validator.is_valid(value) for value in valid)
            assert not any(validator.is_valid(value) for value in invalid)


def test_valid_documents_go_through_and_invalid_ones_do_not() -> None:
    for keyword, schema, valid, invalid in CASES:
        with about((keyword, schema)):
            if (grammar := grammar_of(schema)) is None:
                continue
            for value in valid:
                for spaces in (False, True):
                    text = as_json_text(value, spaces=spaces)
                    assert accepts(grammar, text), text
                    assert accepts(grammar, text, cut=len(text) // 2), text
            for value in invalid:
                for text in {
                    as_json_text(value),
                    as_json_text(value, spaces=True),
                    json.dumps(value, indent=1),
                }:
                    assert not accepts(grammar, text), text


def test_whatever_is_drawn_under_the_mask_is_valid() -> None:
    """SO-01 holds for every complete text, whatever the model prefers."""
    for keyword, schema, _, _ in CASES:
        (grammar, notes), validator = grammar_and_notes(schema), oracle(schema)
        if grammar is None or notes or validator is None:
            continue
        for seed in range(6):
            text = sampled(grammar, seed, limit=20 if seed % 2 else 50, most=200)
            if text is not None:
                assert validator.is_valid(finite(json.loads(text))), (keyword, schema, text)


def finite(value: Any) -> Any:
    """JSON's numbers have no largest one, Python's have: what reads as infinite stands for something very large."""
    if isinstance(value, float) and abs(value) == float("inf"):
        return 1e308 if value > 0 else -1e308
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def test_a_name_has_one_spelling() -> None:
    """Readers take the last of two equal names, so `\\u0061` beside `a` would be a way around its schema."""
    grammar = grammar_of({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert grammar is not None
    assert accepts(grammar, '{"a":1,"b":"x"}')
    for text in ('{"a":1,"\\u0061":"x"}', '{"\\u0061":"x"}', '{"a":1,"a":"x"}', '{"b":1,"a":"x"}'):
        assert not accepts(grammar, text)


def test_the_layout_is_bounded() -> None:
    grammar = grammar_of({"type": "array", "items": {"type": "object"}})
    assert grammar is not None
    assert accepts(grammar, '[{"a":1,"b": 2}, {}]')
    for text in ("[ ]", "[{}\n]", "[{},  {}]", '[{"a"  :1}]', " []", "[] "):
        assert not accepts(grammar, text)


def table() -> str:
    """Return the table of supported keywords."""
    rows: dict[str, list[str]] = {}
    for keyword, schema, _, _ in CASES:
        grammar, notes = grammar_and_notes(schema)
        word = "refused" if grammar is None else "annotation" if notes else "enforced"
        rows.setdefault(keyword, []).append(word)
    lines = [
        f"| `{keyword}` | {words[0] if len(set(words)) == 1 else 'enforced in part'} |"
        for keyword, words in rows.items()
    ]
    return "\n".join(["| keyword | support |", "|---|---|", *lines])


def test_the_docs_list_the_supported_keywords() -> None:
    """On a mismatch the right table is the one in the message."""
    found = re.search(r"\| keyword .*?(?=\n\n|\Z)", DOC.read_text("utf-8"), re.DOTALL)
    assert found is not None
    assert found.group().strip() == table()
