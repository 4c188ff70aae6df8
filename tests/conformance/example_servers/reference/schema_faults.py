"""Validate requests without code of the judge, as an independent implementation.

It decodes JSON with msgspec, the judge with Python's `json`; both use the schemas of the contract.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Any

import jsonschema_rs
import msgspec

from plumbline_conformance.suite.contract import document

__all__ = ["faults", "read_json"]


def _number(text: str) -> int | float:
    value = Decimal(text)
    return int(value) if value == value.to_integral_value() and abs(value) < 2**53 else float(value)


_DECODER = msgspec.json.Decoder(float_hook=_number)


def read_json(content: bytes | str) -> Any:
    """Return the decoded value, or None if it is not JSON."""
    try:
        return _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def faults(schema: str, value: Any) -> list[tuple[list[str | int], bool]]:
    """Return the first schema violation: its path, and whether a required field is missing."""
    try:
        errors = list(_validator(schema).iter_errors(value))
    except ValueError:  # Lone surrogates, or too deep nesting.
        return [([], False)]
    found = []
    for error in errors:
        missing = getattr(error.kind, "property", None)
        found.append(([*error.instance_path, *([missing] if missing else [])], missing is not None))
    return found


@cache
def _validator(schema: str) -> Any:
    components = document()["components"]
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": components}
    )
