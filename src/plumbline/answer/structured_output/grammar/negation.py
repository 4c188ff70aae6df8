"""Negate JSON Schemas, as far as the negation is a schema that the grammar engine has.

The negation of a conjunction is a choice: one alternative for each keyword that may be violated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import permutations
from math import perm
from typing import Any

from plumbline.answer.structured_output.grammar.combined import (
    ANY,
    NOTES,
    TYPES,
    add,
    types_of,
    without_types,
    without_values,
)
from plumbline.answer.structured_output.grammar.numbers.literals import canonical_text

__all__ = [
    "alternatives",
    "are_objects_apart",
    "different_items",
    "have_types_of_their_own",
    "join_conditions",
    "negation",
    "one_of_few",
]

_MOST = 16
"""Alternatives of one negation: each is compiled beside everything else that the schema demands."""
_MOST_TEXT = 1024
"""Characters of the texts that a regex excludes."""
_MOST_CHARACTERS = 64
"""Characters of one of them: each nests its regex deeper, and the engine has a limit of 250."""
_MOST_DEPTH = 6
_MOST_CASES = 10_000
"""Values of a member times conditions on it."""
_MOST_ARRAYS = 400
"""Arrays of different items that are listed one by one: all orders of up to five values, or pairs of nineteen."""
_MOST_ARRAYS_TEXT = 128 * 1024
_SPECIAL = frozenset("\\^$.|?*+()[]{}/-")

Known = Mapping[str, Any]
"""What holds for a value anyway: the keywords `type`, `enum`, `const` and `properties` of the schemas beside."""
_Condition = tuple[list[Any], bool, Mapping[str, Any]]
"""The values for which a condition holds, whether it requires the member, and the schema that has it."""
Referred = Callable[[Any], Any]


class _NoNegationError(Exception):
    """A keyword has no negation that the engine has."""


def negation(schema: Any, known: Known, referred: Referred) -> Any:
    """Return a schema that the values satisfy which a schema excludes; None if there is none that the engine has.

    Args:
        schema: the schema.
        known: what holds for these values anyway.
        referred: returns the target of a reference.
    """
    try:
        return _negated(schema, known, referred, 0)
    except _NoNegationError:
        return None


def join_conditions(schema: dict[str, Any], referred: Referred) -> None:
    """Write several conditions on one member as one choice, because their alternatives would multiply.

    The member's own schema lists its values. Each branch has the values for which the same conditions hold.
    """
    found: dict[str, list[_Condition]] = {}
    for one in schema["allOf"]:
        name, wanted = _condition(one, schema, referred)
        if wanted is not None:
            found.setdefault(name, []).append((wanted, name in one["if"].get("required", ()), one))
    name = max(found, key=lambda key: len(found[key]), default="")
    if len(conditions := found.get(name, [])) < 2:
        return
    own = _listed(referred(schema["properties"][name])) or []
    if len(own) * len(conditions) > _MOST_CASES:
        return  # Each stays a choice of its own, and the engine refuses what is too large.
    texts = [set(map(canonical_text, wanted)) for wanted, _, _ in conditions]
    groups: dict[tuple[bool, ...], list[Any]] = {}
    for value in own:
        text = canonical_text(value)
        holds = tuple(text in wanted for wanted in texts)
        groups.setdefault(holds, []).append(value)
    branches = [
        _case({"required": [name], "properties": {name: {"enum": values}}}, holds, conditions)
        for holds, values in groups.items()
    ]
    if name not in schema.get("required", ()):
        absent = tuple(not required for _, required, _ in conditions)
        branches.append(_case({"properties": {name: False}}, absent, conditions))
    joined = [one for _, _, one in conditions]
    schema["allOf"] = [one for one in schema["allOf"] if not any(one is other for other in joined)]
    add(schema, {"anyOf": branches})


def _case(value: Known, holds: tuple[bool, ...], conditions: list[_Condition]) -> Any:
    parts = [
        one.get("then" if true else "else", True) for true, (_, _, one) in zip(holds, conditions, strict=True)
    ]
    return {"allOf": [value, *(part for part in parts if part is not True)]}


def _condition(one: Any, schema: Known, referred: Referred) -> tuple[str, list[Any] | None]:
    """Return the member that a condition is on, and the values for which it holds; None if it is another one."""
    condition = one.get("if") if isinstance(one, Mapping) and one.keys() <= {"if", "then", "else"} else None
    if not isinstance(condition, Mapping) or schema.get("type") != "object":
        return "", None
    members = condition.get("properties")
    if condition.keys() - NOTES - {"properties", "required"} or not isinstance(members, Mapping):
        return "", None
    name = next(iter(members), "")
    own = referred(schema.get("properties", {}).get(name))
    if len(members) != 1 or set(condition.get("required", ())) - {name} or not isinstance(own, Mapping):
        return "", None
    wanted = members[name]
    if not isinstance(wanted, Mapping) or wanted.keys() - NOTES - {"type"} not in ({"const"}, {"enum"}):
        return "", None
    listed = None if _listed(own) is None else _listed(wanted)
    return name, None if listed is None else [value for value in listed if _fits(value, wanted)]


def alternatives(branches: list[Any], known: Known, referred: Referred) -> list[Any] | None:
    """Return schemas of which exactly one holds where exactly one of these does; None if there are none."""
    if len(branches) > _MOST:
        return None
    found = []
    for number, branch in enumerate(branches):
        target = referred(branch)
        beside = {**known, **target} if isinstance(target, Mapping) else known
        others = [
            negation(other, beside, referred) for index, other in enumerate(branches) if index != number
        ]
        if None in others:
            return None
        if False not in others:
            found.append({"allOf": [branch, *(other for other in others if other is not True)]})
    return found


def are_objects_apart(branches: list[Any], known: Known, referred: Referred) -> bool:
    """Return whether all branches are objects, with a member that all require, whose values no two of them share."""
    targets = [referred(branch) for branch in branches]
    if not all(isinstance(target, Mapping) for target in targets):
        return False
    if types_of(known) != {"object"} and any(types_of(target) != {"object"} for target in targets):
        return False  # A value of another type would satisfy several.
    shared = set.intersection(*(set(target.get("required", ())) for target in targets))
    for name in shared:
        own = [target.get("properties", {}).get(name) for target in targets]
        listed = [_listed(one) if isinstance(one, Mapping) else None for one in own]
        if all(listed) and all(
            without_values(one, {"enum": other}) == one
            for index, one in enumerate(listed)
            for other in listed[index + 1 :]
            if one is not None
        ):
            return True
    return False


def have_types_of_their_own(branches: list[Any], referred: Referred) -> bool:
    """Return whether no two branches allow the same type."""
    kinds = [types_of(referred(branch)) for branch in branches]
    return all(kinds) and sum(map(len, kinds)) == len(set().union(*kinds))


def different_items(schema: Known, referred: Referred) -> list[list[Any]] | None:
    """Return all arrays without a repeated item; None if they are too many, or the items are not listed."""
    items = referred(schema.get("items"))
    listed = _listed(items) if isinstance(items, Mapping) else None
    if listed is None or items.keys() - NOTES - {"type"} not in (set(), {"enum"}, {"const"}):
        return None
    if not schema.keys().isdisjoint(("prefixItems", "contains", "enum", "const")):
        return None
    own = [
        value for value in {canonical_text(value): value for value in listed}.values() if _fits(value, items)
    ]
    least, most = schema.get("minItems", 0), min(schema.get("maxItems", len(own)), len(own))
    count = sum(perm(len(own), size) for size in range(int(most) + 1))
    if count > _MOST_ARRAYS or count * sum(len(canonical_text(value)) for value in own) > _MOST_ARRAYS_TEXT:
        return None
    sizes = range(math.ceil(least), int(most) + 1)
    return [list(one) for size in sizes for one in permutations(own, size)]


def _fits(value: Any, items: Known) -> bool:
    """Return whether a listed value is of the types that stand beside the list."""
    return types_of({"const": value}) <= types_of({"type": items.get("type", list(TYPES))})


def one_of_few(schema: Known) -> list[Any] | None:
    """Return schemas of arrays in which one item satisfies `contains`; None if that item may be at too many places."""
    most = schema.get("maxItems", math.inf)
    others = ("prefixItems", "maxContains", "unevaluatedItems")
    if most > _MOST // 2 or schema.get("minContains", 1) != 1 or not schema.keys().isdisjoint(others):
        return None
    one = schema["contains"]
    before: Any = schema.get("items", True)
    within = [
        {"type": "array", "prefixItems": [*[before] * place, {"allOf": [before, one]}], "minItems": place + 1}
        for place in range(int(most))
    ]
    kinds = types_of({"type": schema.get("type", list(TYPES))}) - {"array"}
    return [*within, *([{"type": sorted(kinds)}] if kinds else [])]


def _listed(schema: Known) -> list[Any] | None:
    """Return the values of a schema that lists them."""
    if "enum" in schema:
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    return [True, False] if schema.get("type") == "boolean" else None


def _negated(schema: Any, known: Known, referred: Referred, depth: int) -> Any:
    schema = referred(schema)
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        raise _NoNegationError
    if "enum" in schema and isinstance(known.get("enum"), list):
        fitting = [value for value in schema["enum"] if _fits(value, schema)]
        schema = {**{name: one for name, one in schema.items() if name != "type"}, "enum": fitting}
    found: list[Any] = []
    for name, value in schema.items():
        if name in NOTES:
            continue
        if name not in _NEGATIONS:
            raise _NoNegationError
        found += _NEGATIONS[name](value, known, referred, depth + 1)
    found = [one for one in found if one is not False and _may_be(one, known)]
    if True in found:
        return True
    if len(found) > _MOST:
        raise _NoNegationError
    return False if not found else found[0] if len(found) == 1 else {"anyOf": found}


def _may_be(schema: Any, known: Known) -> bool:
    """Return whether a value of this schema may be one of the types that are known."""
    kinds, own = types_of(schema), types_of({"type": known["type"]}) if "type" in known else set()
    return not kinds or not own or bool(kinds & own)


def _type(value: Any, known: Known, _: Referred, __: int) -> list[Any]:
    left = without_types(known.get("type"), value)
    if left is None:
        raise _NoNegationError
    return [{"type": left}] if left else []


def _const(value: Any, known: Known, referred: Referred, depth: int) -> list[Any]:
    return _enum([value], known, referred, depth)


def _enum(values: list[Any], known: Known, _: Referred, __: int) -> list[Any]:
    listed = _listed(known)
    if listed is not None:
        left = without_values(listed, {"enum": values})
        return [{"enum": left}] if left else []
    excluded = types_of({"enum": values})
    kinds = types_of({"type": known.get("type", list(TYPES))})
    found: list[Any] = []
    if rest := without_types(known.get("type"), sorted(excluded)):
        found.append({"type": rest})
    for kind in sorted(kinds & excluded):
        own = [value for value in values if types_of({"const": value}) == {kind}]
        found += _OTHERS[kind](own, known)
    return found


def _other_texts(values: list[str], _: Known) -> Iterator[Any]:
    if sum(map(len, values)) > _MOST_TEXT or max(map(len, values)) > _MOST_CHARACTERS:
        raise _NoNegationError
    yield {"type": "string", "pattern": f"^(?:{_unlike(sorted(set(values)))})$"}


def _unlike(values: list[str]) -> str:
    """Return a regex of all texts but these, which follow a common beginning."""
    begun: dict[str, list[str]] = {}
    for value in values:
        if value:
            begun.setdefault(value[0], []).append(value[1:])
    options = [] if "" in values else [""]
    if begun:
        options.append(f"[^{''.join(map(_escaped, begun))}]{ANY}*")
        options += (f"{_escaped(char)}(?:{_unlike(rest)})" for char, rest in begun.items())
    else:
        options.append(f"{ANY}+")
    return "|".join(options)


def _escaped(char: str) -> str:
    return f"\\{char}" if char in _SPECIAL else char


def _other_numbers(values: list[Any], known: Known) -> Iterator[Any]:
    if not all(type(value) is int for value in values) or len(set(values)) >= _MOST:
        raise _NoNegationError
    whole = known.get("type") == "integer" or "number" not in known.get("type", ("number",))
    ends = sorted(set(values))
    for low, high in zip([None, *ends], [*ends, None], strict=True):
        one: dict[str, Any] = {"type": "integer" if whole else "number"}
        if whole and low is not None and high is not None and high - low < 2:
            continue
        if low is not None:
            one |= {"minimum": low + 1} if whole else {"exclusiveMinimum": low}
        if high is not None:
            one |= {"maximum": high - 1} if whole else {"exclusiveMaximum": high}
        yield one


def _other_booleans(values: list[bool], _: Known) -> Iterator[Any]:
    if left := [value for value in (True, False) if value not in values]:
        yield {"enum": left}


def _no_others(values: list[Any], _: Known) -> Iterator[Any]:
    """Yield nothing: there is one null."""
    yield from ()


def _not_empty(values: list[Any], _: Known) -> Iterator[Any]:
    if any(values):
        raise _NoNegationError
    yield {"type": "array", "minItems": 1} if values[0] == [] else {"type": "object", "minProperties": 1}


_OTHERS: Mapping[str, Callable[[list[Any], Known], Iterator[Any]]] = {
    "string": _other_texts,
    "number": _other_numbers,
    "boolean": _other_booleans,
    "null": _no_others,
    "array": _not_empty,
    "object": _not_empty,
}


def _required(names: Collection[str], known: Known, _: Referred, __: int) -> list[Any]:
    required = known.get("required", ())
    return [{"type": "object", "properties": {name: False}} for name in names if name not in required]


def _properties(members: Mapping[str, Any], known: Known, referred: Referred, depth: int) -> list[Any]:
    found: list[Any] = []
    for name, one in members.items():
        own = referred(known.get("properties", {}).get(name))
        other = _negated(one, own if isinstance(own, Mapping) else {}, referred, depth)
        if other is not False:
            found.append({"type": "object", "required": [name], "properties": {name: other}})
    return found


def _bound(opposite: str, *, step: int = 0) -> Callable[[Any, Known, Referred, int], list[Any]]:
    """Return the negation of a bound of numbers, or of a count if it has a step."""

    def negated(value: Any, known: Known, _: Referred, __: int) -> list[Any]:
        if isinstance(value, bool) or (step and not isinstance(value, int)):
            raise _NoNegationError
        if not step:
            kind = "integer" if known.get("type") == "integer" else "number"
            return [{"type": kind, opposite: value}]
        kind = {"L": "string", "I": "array", "P": "object"}[opposite[3]]
        return [{"type": kind, opposite: value + step}] if value + step >= 0 else []

    return negated


def _all_of(schemas: list[Any], known: Known, referred: Referred, depth: int) -> list[Any]:
    return [_negated(one, known, referred, depth) for one in schemas]


def _any_of(schemas: list[Any], known: Known, referred: Referred, depth: int) -> list[Any]:
    found = [one for one in _all_of(schemas, known, referred, depth) if one is not True]
    if False in found:
        return []
    return [True] if not found else found if len(found) == 1 else [{"allOf": found}]


def _not(schema: Any, _: Known, __: Referred, ___: int) -> list[Any]:
    return [schema]


_NEGATIONS: Mapping[str, Callable[[Any, Known, Referred, int], list[Any]]] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "required": _required,
    "properties": _properties,
    "minimum": _bound("exclusiveMaximum"),
    "maximum": _bound("exclusiveMinimum"),
    "exclusiveMinimum": _bound("maximum"),
    "exclusiveMaximum": _bound("minimum"),
    "minLength": _bound("maxLength", step=-1),
    "maxLength": _bound("minLength", step=1),
    "minItems": _bound("maxItems", step=-1),
    "maxItems": _bound("minItems", step=1),
    "allOf": _all_of,
    "anyOf": _any_of,
    "not": _not,
}
