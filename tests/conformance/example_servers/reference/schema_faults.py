"""What a request says, read without any of the judge's own code: two readings of one text have to agree.

JSON is read by msgspec, where the judge takes Python's own module; the contract's schemas are data that both share.
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
    """The value, or None where this is not JSON."""
    try:
        return _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def faults(schema: str, value: Any) -> list[tuple[list[str | int], bool]]:
    """Where a value breaks a schema of the contract: the path, and whether what should stand there is missing."""
    try:
        errors = list(_validator(schema).iter_errors(value))
    except ValueError:  # Lone surrogates, or nesting without end.
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
