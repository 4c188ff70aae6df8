"""Compose the grammar of a JSON Schema with numbers that the grammar engine does not keep.

llguidance reads every number as a double. A schema with `{"const": 9007199254740993}`, or with a bound of 64 bits, is
therefore composed here from the root to these numbers, which become literal texts and regexes of ranges. What has no
such numbers below it is left to the engine. Objects, arrays, alternatives and references to `$defs` can be composed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from plumbline.answer.structured_output.grammar.errors import TOO_COMPLEX, ConstraintError
from plumbline.answer.structured_output.grammar.numbers.bounds import bounds_of
from plumbline.answer.structured_output.grammar.numbers.exact import UNREACHABLE, exact_numbers, is_inexact
from plumbline.answer.structured_output.grammar.numbers.literals import number_text
from plumbline.answer.structured_output.grammar.numbers.ranges import Bound, range_lexeme
from plumbline.base.exact_number import dumps

__all__ = ["JsonComposer", "has_inexact_numbers"]

_NOTES = frozenset(
    (
        "$comment",
        "$defs",
        "default",
        "definitions",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
    )
)
_IGNORED = _NOTES | {"writeOnly", "discriminator"}
_OBJECT = frozenset(("type", "properties", "required", "additionalProperties"))
_ARRAY = frozenset(("type", "items", "minItems", "maxItems"))
_BOUNDS = frozenset(("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_TYPES = ("string", "boolean", "null", "array", "object")
_COMMA = "/, ?/"
_MOST_TEXT = 4 * 1024 * 1024
"""Characters of the grammar of one schema."""
_MOST_STEPS = 500_000
_LONGEST_INLINE = 200
"""Characters of an expression that is repeated where it is used; a longer one is a rule, so that text stays linear."""
_MOST_BOUND = 10**360
"""Bounds of doubles, and their fractions, have fewer digits; the regex of a range grows with their square."""
_NAME = r'"(?:[^"\\\x00-\x1f\x7f]|\\[nrbtf\\"])*"'


def has_inexact_numbers(schema: Any) -> bool:
    """Return whether a schema has numbers that the engine would not keep."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, Mapping):
            if is_inexact(value):
                return True
            left += [one for name, one in value.items() if type(one) in _NESTED and name not in _VALUES]
    return False


_NESTED = (dict, list)
_VALUES = frozenset(("const", "enum", *_NOTES)) - {"$defs", "definitions"}


class JsonComposer:
    """Compose one schema.

    Args:
        root: the schema, after `keywords` and before `numbers`.
        rule: returns the name of a rule with a body.
        define: gives a rule a name of this class.
        choice: joins alternatives.
        layout: the options of the engine's schemas.
    """

    def __init__(
        self,
        root: Mapping[str, Any],
        rule: Callable[[str, str], str],
        define: Callable[[str, str], object],
        layout: Mapping[str, Any],
    ) -> None:
        self._root = root
        self._rule = rule
        self._define = define
        self._layout = layout
        self._definitions: dict[str, str] = {}
        self._pending: list[tuple[str, str, str]] = []
        self._engine_rules: dict[str, str] = {}
        self._ranges: dict[tuple[Bound | None, Bound | None, bool], str] = {}
        self._bodies: set[str] = set()
        self._steps = 0
        self._text = 0
        self._inexact = self._leading_to_numbers()
        # Other schemas of the same grammar also have definitions.
        self._prefix = f"composed_{hashlib.sha256(dumps(root).encode()).hexdigest()[:12]}"

    def grammar(self) -> str:
        """Return the expression of the whole document.

        Raises:
            ConstraintError: a number stands where it cannot be composed.
        """
        found = self._value(self._root, "#")
        while self._pending:  # Not by recursion: chains of references may be long.
            name, reference, where = self._pending.pop()
            target = self._target(reference)
            if target is None:
                raise _refused(where)
            self._define(name, self._value(target, reference))
        return found

    def _spend(self, *, steps: int = 0, text: int = 0) -> None:
        self._steps += steps
        self._text += text
        if self._steps > _MOST_STEPS or self._text > _MOST_TEXT:
            raise ConstraintError(TOO_COMPLEX)

    def _new_rule(self, kind: str, body: str) -> str:
        if body not in self._bodies:  # Equal bodies share a rule.
            self._bodies.add(body)
            self._spend(text=len(body))
        return self._rule(kind, body)

    def _value(self, schema: Any, where: str) -> str:
        self._spend(steps=1)
        found = self._expression(schema, where) if self._reaches(schema) else self._left_to_engine(schema)
        return found if len(found) <= _LONGEST_INLINE else self._new_rule("part", found)

    def _expression(self, schema: Mapping[str, Any], where: str) -> str:
        keys = schema.keys() - _IGNORED
        if keys == {"$ref"}:
            return self._definition(schema["$ref"], where)
        for name in ("anyOf", "oneOf", "allOf"):
            if keys == {name} and (name != "allOf" or len(schema[name]) == 1):
                if name == "oneOf" and not _are_constants(schema[name]):
                    raise _refused(where)
                return self._choice(
                    [self._value(one, f"{where}/{name}/{n}") for n, one in enumerate(schema[name])]
                )
        if keys <= {"type", "const", "enum"} and keys & {"const", "enum"}:
            return self._listed(schema, where)
        kinds = schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if keys <= _BOUNDS and {"integer", "number"} & set(kinds):
            return self._numbers(schema, kinds, where)
        if keys <= _OBJECT and kinds in (["object"], [None]):
            found = self._object(schema, where)
            others = {"type": ["array", "boolean", "null", "number", "string"]}
            return found if kinds == ["object"] else self._choice([found, self._left_to_engine(others)])
        if keys <= _ARRAY and kinds == ["array"]:
            return self._array(schema, where)
        raise _refused(where)

    def _reaches(self, schema: Any) -> bool:
        """Return whether a schema leads to a number that must be composed."""
        if not isinstance(schema, Mapping):
            return False
        own = _without_definitions(schema)
        return has_inexact_numbers(own) or not self._inexact.isdisjoint(_references(own))

    def _leading_to_numbers(self) -> set[str]:
        """Return the references that lead to a number that must be composed, directly or by others."""
        left = list(_references(self._root))
        users: dict[str, set[str]] = {}
        seen = set(left)
        found: list[str] = []
        while left:
            reference = left.pop()
            target = self._target(reference)
            own = _without_definitions(target) if isinstance(target, Mapping) else {}
            if has_inexact_numbers(own):
                found.append(reference)
            used = _references(own)
            self._spend(steps=1 + len(used))
            for other in used:
                users.setdefault(other, set()).add(reference)
            left += used - seen
            seen |= used
        leading = set(found)
        while found:
            further = users.get(found.pop(), set()) - leading
            leading |= further
            found += further
        return leading

    def _target(self, reference: str) -> Any:
        value: Any = self._root
        for step in reference.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def _left_to_engine(self, schema: Any) -> str:
        if schema is False:
            raise ConstraintError("The schema is false: nothing satisfies it.")
        if isinstance(schema, bool):
            schema = {}
        own = _without_definitions(schema)
        key = dumps(own)
        if key in self._engine_rules:
            return self._engine_rules[key]
        needed: dict[str, Any] = {}
        left = list(_references(own))
        while left:
            reference = left.pop()
            if reference not in needed:
                needed[reference] = target = self._target(reference)
                used = _references(target)
                self._spend(steps=1 + len(used))
                left += used
        for reference, target in needed.items():
            steps = reference.split("/")
            if len(steps) != 3:
                raise ConstraintError(
                    f"A schema beside large numbers refers to {reference[:80]!r}, which cannot be enforced."
                )
            own.setdefault(steps[1], {})[steps[2].replace("~1", "/").replace("~0", "~")] = target
        body = f"%json {json.dumps({**exact_numbers(own), 'x-guidance': self._layout})}"
        self._engine_rules[key] = found = self._new_rule("json", body)
        return found

    def _definition(self, reference: str, where: str) -> str:
        name = self._definitions.get(reference)
        if name is None:
            name = self._definitions[reference] = f"{self._prefix}_{len(self._definitions)}"
            self._pending.append((name, reference, where))
        return name

    def _choice(self, expressions: list[str]) -> str:
        found = list(dict.fromkeys(expressions))
        return found[0] if len(found) == 1 else f"({' | '.join(found)})"

    def _listed(self, schema: Mapping[str, Any], where: str) -> str:
        kinds = schema.get("type")
        allowed = None if kinds is None else {kinds} if isinstance(kinds, str) else set(kinds)
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if "enum" in schema and "const" in schema:
            raise _refused(where)
        texts: dict[str, None] = {}
        for value in values:
            if allowed is None or _fits(value, allowed):
                texts |= dict.fromkeys((_text(value, ",", ":"), _text(value, ", ", ": ")))
        if not texts:
            raise ConstraintError(f"'{where}' lists no value of its type.")
        return self._new_rule("LISTED", " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))

    def _numbers(self, schema: Mapping[str, Any], kinds: list[Any], where: str) -> str:
        least, most = bounds_of(schema)
        for bound in (least, most):
            if bound is not None and max(abs(bound.value.numerator), bound.value.denominator) > _MOST_BOUND:
                raise ConstraintError(f"'{where[:200]}' has a bound of too many digits.")
        key = least, most, "number" not in kinds
        if key not in self._ranges:
            self._ranges[key] = self._new_rule("NUMBER", range_lexeme(least, most, integers=key[2]))
        found = [self._ranges[key]]
        found += [self._left_to_engine({"type": kind}) for kind in kinds if kind in _TYPES]
        return self._choice(found)

    def _array(self, schema: Mapping[str, Any], where: str) -> str:
        item = self._value(schema.get("items", True), f"{where}/items")
        if not item.isidentifier():  # The item is written twice, and so would be each array inside it.
            item = self._new_rule("item", item)
        least, most = _count(schema.get("minItems", 0)), _count(schema.get("maxItems"))
        if least is None:
            raise ConstraintError(f"'{where[:200]}/minItems' cannot be enforced: no answer is so long.")
        if most is not None and (most < max(least, 1)):
            if most < least:
                raise ConstraintError(f"'{where}' allows no number of items.")
            return self._new_rule("EMPTY", '"[]"')
        further = (
            "*"
            if most is None and least < 2
            else f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        )
        items = f'"[" {item} ({_COMMA} {item}){further} "]"'
        return f"({items})" if least else f'({items} | "[]")'

    def _object(self, schema: Mapping[str, Any], where: str) -> str:
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        if required - properties.keys():
            raise _refused(where)
        members: list[tuple[str, bool]] = []
        for name, one in properties.items():
            if one is False:
                if name in required:
                    raise ConstraintError(f"'{where}/properties/{name[:64]}' is false and required.")
                continue
            key = self._new_rule(
                "KEY", f"{json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)} /: ?/"
            )
            members.append((f"{key} {self._value(one, f'{where}/properties/{name}')}", name in required))
        tail = self._further(schema, where)
        further = f"({_COMMA} {tail})*" if tail else ""
        starts: list[str] = []
        # From the last member to the first: what may follow, and with what the object may begin.
        closing = self._new_rule("rest", further) if further else ""
        begins: list[str] = [f"{tail} {closing}".strip()] if tail else []
        for member, is_required in reversed(members):
            begins = [f"{member} {closing}".strip(), *([] if is_required else begins)]
            part = f"({_COMMA} {member})" + ("" if is_required else "?")
            closing = self._new_rule("rest", f"{part} {closing}".strip())
        starts = begins
        may_be_empty = not any(is_required for _, is_required in members)
        inside = [f'"{{" {one} "}}"' for one in starts] + (['"{}"'] if may_be_empty else [])
        return self._choice(inside) if len(inside) > 1 else f"({inside[0]})"

    def _further(self, schema: Mapping[str, Any], where: str) -> str:
        """Return a member that is not listed; empty if there are none."""
        rest = schema.get("additionalProperties", True)
        if rest is False:
            return ""
        listed = "|".join(
            _escaped(json.dumps(name, ensure_ascii=False)) for name in schema.get("properties", ())
        )
        without = f" & ~/(?:{listed}): ?/" if listed else ""
        name = self._new_rule("NAME", f"/{_NAME}: ?/{without}")
        return f"{name} {self._value(rest, f'{where}/additionalProperties')}"


def _without_definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in schema.items() if name not in ("$defs", "definitions")}


def _count(value: Any) -> int | None:
    """Return a number of items; None for one that no answer reaches, which is no limit."""
    return None if value is None or value >= UNREACHABLE else int(value)


def _references(value: Any) -> set[str]:
    found: set[str] = set()
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, Mapping):
            if isinstance(one.get("$ref"), str):
                found.add(one["$ref"])
            left += [
                part for name, part in one.items() if name not in ("const", "enum", "default", "examples")
            ]
    return found


def _are_constants(branches: list[Any]) -> bool:
    values = [one["const"] for one in branches if isinstance(one, Mapping) and "const" in one]
    return len(values) == len(branches) == len({_text(value, ",", ":") for value in values})


def _fits(value: Any, kinds: set[str]) -> bool:
    match value:
        case None:
            return "null" in kinds
        case bool():
            return "boolean" in kinds
        case int():
            return bool({"integer", "number"} & kinds)
        case float():
            return "number" in kinds or ("integer" in kinds and Fraction(number_text(value)).denominator == 1)
        case str():
            return "string" in kinds
        case list():
            return "array" in kinds
        case _:
            return "object" in kinds


def _text(value: Any, comma: str, colon: str) -> str:
    """Return a value as JSON, numbers as the client wrote them."""
    match value:
        case Mapping():
            members = (
                f"{json.dumps(name, ensure_ascii=False)}{colon}{_text(one, comma, colon)}"
                for name, one in value.items()
            )
            return "{" + comma.join(members) + "}"
        case list():
            return "[" + comma.join(_text(one, comma, colon) for one in value) + "]"
        case int() | float() if not isinstance(value, bool):
            return number_text(value)
        case _:
            return json.dumps(value, ensure_ascii=False)


def _escaped(text: str) -> str:
    """Escape a text for a regex between slashes."""
    return "".join(char if char.isalnum() else rf"\x{{{ord(char):x}}}" for char in text)


def _refused(where: str) -> ConstraintError:
    return ConstraintError(
        f"'{where[:200]}' has a number of more digits than a double-precision number, in a place where that cannot be "
        "enforced. Numbers as values of properties and items, beside no other keywords, can be."
    )
