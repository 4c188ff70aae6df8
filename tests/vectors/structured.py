"""Make the vectors of structured output: schemas, texts that they allow, and texts that they refuse.

The keywords with their documents are written by hand (`tests/structured_output/corpus.py`). The other schemas are like
those of programs; their valid documents come with them, and an independent validator says which others are invalid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
from structured_output.corpus import CASES
from structured_output.generated import sample

__all__ = ["files"]

SAMPLES = 40
_SPACED = (", ", ": ")
_COMPACT = (",", ":")


def files() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the content of each file."""
    yield "keywords", {"format": 1, "cases": _numbered(_keywords())}
    yield "programs", {"format": 1, "cases": _numbered(_programs())}


def _numbered(cases: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": number, **case} for number, case in enumerate(cases, 1)]


def _keywords() -> Iterator[dict[str, Any]]:
    for keyword, schema, valid, invalid in CASES:
        for value in valid:
            yield _case(keyword, schema, _text(value, _SPACED), True)
        for value in invalid:
            yield _case(keyword, schema, _text(value, _SPACED), False)
        if valid and valid[0] not in ("", 0, None, True, False) and isinstance(valid[0], dict | list | str):
            yield _case(f"{keyword}, cut", schema, _text(valid[0], _SPACED)[:-1], False)


def _programs() -> Iterator[dict[str, Any]]:
    for seed in range(SAMPLES):
        schema, valid, broken = sample(seed)
        validator: Any = jsonschema_rs.validator_for(schema, validate_formats=True)
        layout = _SPACED if seed % 2 else _COMPACT
        seen: set[str] = set()
        for value in (*valid[:2], *(value for value in broken[:5] if not validator.is_valid(value))):
            text = _text(value, layout)
            if text not in seen:
                seen.add(text)
                yield _case(f"program {seed + 1}", schema, text, validator.is_valid(value))


def _case(title: str, schema: Any, text: str, allowed: bool) -> dict[str, Any]:
    return {"title": title, "rules": ["SO-01"], "schema": schema, "text": text, "allowed": allowed}


def _text(value: Any, separators: tuple[str, str]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=separators)
