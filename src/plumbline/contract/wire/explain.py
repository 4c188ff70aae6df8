"""Turn msgspec's validation errors into API errors with OpenAI's texts (ERR-04) and exact JSON paths (ERR-05).

msgspec reports the first failure as a sentence with a path. This module parses the sentence, finds the wrong value in
the document and the allowed values in the type, and picks a constructor of `plumbline.contract.wire.errors`.
`SENTENCES` lists every sentence that msgspec produces for the contract's types.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from msgspec import inspect

from .errors import (
    ApiError,
    integer_above_max_value,
    integer_below_min_value,
    invalid_request,
    invalid_type,
    invalid_value,
    listed,
    missing_required_parameter,
    unknown_parameter,
)
from .shapes import NO_OTHER

__all__ = ["explain"]

Path = list[str | int]

AT = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`$")
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
ANY_CHILD = "..."  # msgspec does not name the key of a map

PHRASES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Refusal:
    """A refusal by msgspec: the root type, the document, the path, and whether a key or a value is wrong."""

    root: type
    document: Any
    path: Path
    is_key: bool

    def inside(self, name: str) -> str:
        """Return the dotted path of a field of the object at the path."""
        return _dotted([*self.path, name])

    def find(self, wrong: Callable[[Any], bool]) -> tuple[str, Any]:
        """Return the dotted path and the value of the first place that the path can mean and that is wrong."""
        places = list(_places(self.document, self.path)) or [(self.path, None)]
        place, value = next((p for p in places if wrong(p[1])), places[0])
        return _dotted(place), value


def explain(root: type, document: dict[str, Any], message: str) -> ApiError:
    """Turn msgspec's validation message about a document into an API error."""
    at = AT.search(message)
    sentence = message[: at.start()] if at else message
    path = [_step(step) for step in STEP.finditer(at["path"])] if at else []
    refusal = Refusal(root, document, path, is_key=bool(at and at["key"]))
    for pattern, make_error in SENTENCES:
        found = pattern.fullmatch(sentence)
        if found:
            return make_error(refusal, **found.groupdict())
    return invalid_request(f"Invalid request: {sentence}.", _dotted(path) or None, "invalid_value")


# Paths


def _step(step: re.Match[str]) -> str | int:
    name, index = step.groups()
    if index is not None:
        return int(index)
    return ANY_CHILD if name is None else str(name)


def _dotted(path: Path) -> str:
    """Format a path as OpenAI's service does: `messages[0].content[1].type`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _places(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield every place that the path can mean, with its value."""
    if not path:
        yield [], value
        return
    for name, child in _children(value, path[0]):
        for place, found in _places(child, path[1:]):
            yield [name, *place], found


def _children(value: Any, step: str | int) -> list[tuple[str | int, Any]]:
    if isinstance(value, dict):
        if step == ANY_CHILD:
            return list(value.items())
        return [(step, value[step])] if step in value else []
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return [(step, value[step])]
    return []


# One function per sentence of msgspec


def _missing(refusal: Refusal, field: str) -> ApiError:
    return missing_required_parameter(refusal.inside(field))


def _unknown(refusal: Refusal, field: str) -> ApiError:
    return unknown_parameter(refusal.inside(field))


def _mistyped(refusal: Refusal, kinds: str) -> ApiError:
    wanted = [word.strip() for word in kinds.split("|")]
    right = tuple(kind for word in wanted for kind in KINDS.get(word, ()))

    def wrong(value: Any) -> bool:
        # In Python a boolean is an integer, in JSON it is not.
        return not isinstance(value, right) or (isinstance(value, bool) and bool not in right)

    where, value = refusal.find(wrong)
    # Null means absent; OpenAI's service does not list it as expected.
    phrases = [PHRASES.get(word, f"`{word}`") for word in wanted if word != "null"]
    expected = phrases[0] if len(phrases) == 1 else f"one of {listed(phrases, 'or')}"
    return invalid_type(where, expected, value)


def _out_of_range(refusal: Refusal, kind: str, sign: str, bound: str) -> ApiError:
    limit = int(bound) if bound.lstrip("-").isdigit() else float(bound)
    where, value = refusal.find(lambda v: isinstance(v, int | float) and not COMPARE[sign](v, limit))
    noun = "integer" if kind == "int" else "decimal"
    if sign == "<=":
        return integer_above_max_value(where, limit, value, noun)
    if sign == ">=":
        return integer_below_min_value(where, limit, value, noun)
    side, code = ("above maximum", "above_max") if sign == "<" else ("below minimum", "below_min")
    message = (
        f"Invalid '{where}': {noun} {side} value. Expected a value {sign} {limit:g}, but got {value} instead."
    )
    return invalid_request(message, where, f"{noun}_{code}_value")


def _out_of_length(refusal: Refusal, kind: str, sign: str, bound: str) -> ApiError:
    limit = int(bound)
    if refusal.is_key:
        return _key_out_of_length(refusal, limit)
    where, value = refusal.find(
        lambda v: isinstance(v, str | list | dict) and not COMPARE[sign](len(v), limit)
    )
    noun = {"str": "string", "array": "array", "object": "object"}[kind]
    side, most, code = ("long", "maximum", "above_max") if sign == "<=" else ("short", "minimum", "below_min")
    problem = f"{noun} too {side}"
    article = "a" if noun == "string" else "an"
    message = (
        f"Invalid '{where}': {problem}. "
        f"Expected {article} {noun} with {most} length {limit}, "
        f"but got {article} {noun} with length {len(value)} instead."
    )
    return invalid_request(message, where, f"{noun}_{code}_length")


def _key_out_of_length(refusal: Refusal, limit: int) -> ApiError:
    where, value = refusal.find(lambda v: isinstance(v, dict) and any(len(key) > limit for key in v))
    longest = max(map(len, value))
    message = (
        f"Invalid '{where}': key too long. "
        f"Expected keys of at most {limit} characters, but one has {longest}."
    )
    return invalid_request(message, where, "string_above_max_length")


def _mismatched(refusal: Refusal, pattern: str) -> ApiError:
    regex = pattern.encode().decode("unicode_escape")
    where, _ = refusal.find(lambda v: isinstance(v, str) and not re.search(regex, v))
    shown = regex.replace("\\Z", "$")
    message = f"Invalid '{where}': string does not match pattern. Expected a string that matches '{shown}'."
    return invalid_request(message, where, "invalid_value")


def _not_listed(refusal: Refusal, got: str) -> ApiError:
    supported = _supported(refusal)
    where, value = refusal.find(lambda v: v not in supported)
    return invalid_value(where, value, supported)


def _mixed(refusal: Refusal, field: str) -> ApiError:
    where = refusal.inside(field)
    message = f"Invalid type for '{where}': expected items of one kind, but got a mixture of kinds instead."
    return invalid_request(message, where, "invalid_type")


SENTENCES: list[tuple[re.Pattern[str], Callable[..., ApiError]]] = [
    (re.compile(r"Object missing required field `(?P<field>[^`]+)`"), _missing),
    (re.compile(r"Object contains unknown field `(?P<field>[^`]+)`"), _unknown),
    (re.compile(r"Expected `(?P<kinds>[^`]+)`, got `[^`]+`"), _mistyped),
    (re.compile(r"Expected `(?P<kind>int|float)` (?P<sign>[<>]=?) (?P<bound>\S+)"), _out_of_range),
    (re.compile(r"Expected `(?P<kind>\w+)` of length (?P<sign>[<>]=) (?P<bound>\d+)"), _out_of_length),
    (re.compile(r"Expected `str` matching regex '(?P<pattern>.*)'"), _mismatched),
    (re.compile(r"Invalid (?:enum )?value (?P<got>.*)", re.DOTALL), _not_listed),
    (re.compile(r"`(?P<field>\w+)` mixes kinds of items"), _mixed),
]


# Allowed values


@functools.cache
def _type_of(root: type) -> inspect.Type:
    return inspect.type_info(root)


def _supported(refusal: Refusal) -> list[str]:
    """Return the strings that the contract allows at the path, given the tags in the document."""
    types = [_type_of(refusal.root)]
    values = [refusal.document]
    for step in refusal.path:
        types = [child for kind in _flat(types) for value in values for child in _typed(kind, step, value)]
        values = [child for value in values for _, child in _children(value, step)] or [None]
    literals = [kind for kind in _flat(types) if isinstance(kind, inspect.LiteralType)]
    return list(dict.fromkeys(v for kind in literals for v in kind.values if isinstance(v, str)))


def _flat(types: list[inspect.Type]) -> list[inspect.Type]:
    flat: list[inspect.Type] = []
    for kind in types:
        flat += _flat(list(kind.types)) if isinstance(kind, inspect.UnionType) else [kind]
    return flat


def _typed(kind: inspect.Type, step: str | int, value: Any) -> list[inspect.Type]:
    match kind:
        case inspect.ListType():
            return [kind.item_type]
        case inspect.DictType():
            return [kind.value_type]
        case inspect.StructType() if kind.tag_field == step:
            return [] if kind.tag == NO_OTHER else [inspect.LiteralType((cast(str, kind.tag),))]
        case inspect.StructType() if not kind.tag_field or _tag(value, kind.tag_field) == kind.tag:
            return [field.type for field in kind.fields if field.encode_name == step]
        case _:
            return []


def _tag(value: Any, field: str) -> Any:
    return value.get(field) if isinstance(value, dict) else None
