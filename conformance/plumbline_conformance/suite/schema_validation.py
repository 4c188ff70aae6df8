"""Validate values against the contract's schemas."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import jsonschema_rs

from plumbline_conformance.suite.contract import document, widened_schemas
from plumbline_conformance.suite.field_rules import rule_of
from plumbline_conformance.suite.scenario import Problem

__all__ = ["NOT_NEEDED", "fits", "known_members", "violations"]

_MANY = 1000
"""Maximum errors to search for nulls: a list of answers has one error for each null of each answer."""
_PASSES = 8
"""Maximum passes: a null may hide another one, and a long list has more nulls than one pass removes."""
_LIMIT = 20
"""Violations reported for one value."""
_CAUSES = 3
"""Causes named for one violation."""
NOT_NEEDED = {
    # Only OpenAI's document requires it, it is new there, and no official client needs it.
    "InputTokensDetails": ["cache_write_tokens"],
    # Only Open Responses requires these, and OpenAI's document does not.
    "Response": [
        "background",
        "completed_at",
        "frequency_penalty",
        "max_output_tokens",
        "max_tool_calls",
        "presence_penalty",
        "previous_response_id",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "text",
        "top_logprobs",
        "truncation",
    ],
    "ResponseReasoning": ["effort", "summary"],
    "FunctionTool": ["description"],
    "FunctionToolCallResource": ["id", "status"],
}
"""Members that do not make an answer invalid if they are left out, by schema; checks of their own look for them."""


def violations(name: str, value: Any, where: str = "") -> Iterator[Problem]:
    """Yield the violations of a schema; each names the rule about its member.

    A null in an optional member that is not nullable counts as the member left out: many servers send all members they
    know, and every client reads it so.
    """
    try:
        errors = _errors(name, value)
    except (
        ValueError
    ) as unreadable:  # Lone surrogates or very deep nesting: legal JSON that the validator refuses.
        yield Problem(
            expected=f"a valid {name}",
            actual=str(unreadable),
            pointer=where.rstrip(", "),
            rule=rule_of(name, ()),
        )
        return
    for error in errors:
        meant = _meant(error)
        path = ".".join(str(part) for part in (meant[0] if len(meant) == 1 else error).instance_path)
        # An error about a missing member has the path of the parent.
        missing = getattr(error.kind, "property", None)
        rule = rule_of(name, [*error.instance_path, *([missing] if isinstance(missing, str) else [])])
        shown = "; ".join(_message(inner) for inner in meant[:_CAUSES])[:300]
        yield Problem(expected=f"a valid {name}", actual=shown, pointer=f"{where}{path}", rule=rule)


def _meant(error: Any) -> list[Any]:
    """Return the causes of an error; for a union, the causes in the branch that the value was meant for.

    That is the branch with the right `type` and the right JSON type, and then the fewest errors. If no branch fits, the
    error itself is the cause.
    """
    branches = [list(branch) for branch in getattr(error.kind, "context", None) or ()]
    if not branches:
        return [error]
    best = min(
        branches, key=lambda branch: (sum(_is_another_kind(error, inner) for inner in branch), len(branch))
    )
    if any(_is_another_kind(error, inner) for inner in best):
        return [error]
    return [cause for inner in best for cause in _meant(inner)]


def _is_another_kind(error: Any, inner: Any) -> bool:
    """Return whether an error of a branch means that the value is meant for another branch."""
    depth = len(inner.instance_path) - len(error.instance_path)
    keyword = inner.schema_path[-1] if inner.schema_path else ""
    if depth == 0:
        return keyword == "type"
    return depth == 1 and inner.instance_path[-1] == "type" and keyword in ("const", "enum")


def _message(error: Any) -> str:
    """Return the message of an error, with the name of its schema if that is not the schema of the whole value."""
    where = list(error.schema_path)[:3]
    name = f" of {where[2]}" if where[:2] == ["components", "schemas"] and len(where) == 3 else ""
    return f"{error.message[:250]}{name}"


def _errors(name: str, value: Any) -> list[Any]:
    validator = _validator(name)
    for _ in range(_PASSES):
        errors = list(islice(validator.iter_errors(value), _MANY))
        nulls = [path for error in errors for path in _nulls(value, error) or ()]
        if not nulls:
            break
        value = copy.deepcopy(value)
        for path in nulls:
            parent = _at(value, path[:-1])
            parent.pop(path[-1], None)
    return errors[:_LIMIT]


def _nulls(value: Any, error: Any) -> list[list[str | int]] | None:
    """Return the null members that cause an error, or None if it has another cause.

    In `anyOf` or `oneOf`, nulls must be the only cause in one branch.
    """
    if error.instance_path and _is_null_field(value, error.instance_path):
        return [error.instance_path]
    for branch in getattr(error.kind, "context", None) or ():
        found = [_nulls(value, inner) for inner in branch]
        if None not in found:
            return [path for paths in found for path in paths or ()]
    return None


def _is_null_field(value: Any, path: list[str | int]) -> bool:
    return isinstance(path[-1], str) and _at(value, path) is None


def _at(value: Any, path: list[str | int]) -> Any:
    for part in path:
        value = value[part]
    return value


@cache
def _validator(name: str) -> Any:
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": {"schemas": _schemas()}}
    )


@cache
def _schemas() -> dict[str, Any]:
    """Return the contract's schemas with what others may answer, and without requirements that no client needs."""
    schemas: dict[str, Any] = document()["components"]["schemas"] | widened_schemas()
    for name, members in NOT_NEEDED.items():
        required = [member for member in schemas[name]["required"] if member not in members]
        schemas[name] = {**schemas[name], "required": required}
    return schemas


def fits(schema: dict[str, Any], value: Any) -> bool:
    """Return whether a value is valid under a schema that the suite wrote."""
    try:
        return bool(jsonschema_rs.is_valid(schema, value))
    except ValueError:  # Lone surrogates or very deep nesting.
        return False


def known_members(name: str, value: Any) -> Any:
    """Return an object without the members that the contract does not have: each answer may have its own of these."""
    if not isinstance(value, dict):
        return value
    known = _member_names(name)
    return {key: member for key, member in value.items() if key in known}


@cache
def _member_names(name: str) -> frozenset[str]:
    return frozenset(_properties(_schemas()[name]))


def _properties(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the members of an object in any of its forms."""
    if "$ref" in schema:
        yield from _properties(_schemas()[schema["$ref"].rpartition("/")[2]])
    yield from schema.get("properties", ())
    for kind in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(kind, ()):
            yield from _properties(part)
