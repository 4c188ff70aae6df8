"""Map a schema violation to the rule that it breaks.

A rule lists the members it is about under `fields` in `openapi/rules/`. A member that no rule lists breaks the rule
with `"*"`, which is about the schema as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from plumbline_conformance.suite.contract import rules

__all__ = ["members_of", "rule_of", "rules_of_shape"]

_EVERYTHING = ["*"]
_Row = tuple[str, list[tuple[str, ...]]]


@cache
def _rows(schema: str) -> list[_Row]:
    """Return the rules of a schema with the paths they are about; the rule about everything else comes last."""
    found = [
        (name, rule["fields"][schema]) for name, rule in rules().items() if schema in rule.get("fields", ())
    ]
    found.sort(key=lambda row: row[1] == _EVERYTHING)
    return [(name, [tuple(path.split(".")) for path in paths]) for name, paths in found]


def rules_of_shape(schema: str) -> tuple[str, ...]:
    """Return the rules that a value of this schema can break."""
    return tuple(rule for rule, _ in _rows(schema))


def members_of(rule: str, schema: str) -> list[str]:
    """Return the paths of the members of a schema that a rule is about."""
    return list(rules()[rule].get("fields", {}).get(schema, ()))


def rule_of(schema: str, path: Sequence[str | int]) -> str:
    """Return the rule about the member at a path, or an empty string if no rule lists members of the schema."""
    rows = _rows(schema)
    if not rows:
        return ""
    for rule, patterns in rows[:-1]:
        if any(_matches(path, pattern) for pattern in patterns):
            return rule
    return rows[-1][0]


def _matches(path: Sequence[str | int], pattern: tuple[str, ...]) -> bool:
    parts = zip(pattern, path, strict=False)
    return len(path) >= len(pattern) and all(wanted in ("*", part) for wanted, part in parts)
