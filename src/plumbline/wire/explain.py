"""Say what is wrong with a request in the service's words (ERR-04), at the exact JSON path (ERR-05).

msgspec reports the first failure as a sentence with a path. This module reads the sentence, walks the document to the
offending value, walks the type to what would have been right, and picks the constructor of `plumbline.wire.errors`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

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

__all__ = ["explain"]

Path = list[str | int]

AT = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`$")
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
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
ANY_CHILD = "..."


def explain(root: type, document: dict[str, Any], refusal: str) -> ApiError:
    """Turn msgspec's refusal of a document into the error that the client gets."""
    at = AT.search(refusal)
    sentence = refusal[: at.start()] if at else refusal
    path = [_step(step) for step in STEP.finditer(at["path"])] if at else []
    for pattern, say in SENTENCES:
        found = pattern.fullmatch(sentence)
        if found:
            return say(root, document, path, found, bool(at and at["key"]))
    return invalid_request(f"Invalid request: {sentence}.", _written(path) or None, "invalid_value")


def _step(step: re.Match[str]) -> str | int:
    name, index = step.groups()
    return name if name is not None else int(index) if index is not None else ANY_CHILD


def _written(path: Path) -> str:
    """Write a path as the service does: `messages[0].content[1].type`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _find(document: Any, path: Path, wrong: Callable[[Any], bool]) -> tuple[Path, Any]:
    """Return the path and value of the first place on `path` that is wrong; msgspec does not name map keys."""
    places = list(_places(document, path))
    for place, value in places:
        if wrong(value):
            return place, value
    return places[0] if places else (path, None)


def _places(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if not path:
        yield [], value
        return
    step, rest = path[0], path[1:]
    children: list[tuple[str | int, Any]] = []
    if step == ANY_CHILD and isinstance(value, dict):
        children = list(value.items())
    elif (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int) and step < len(value)):
        children = [(step, value[step])]
    for name, child in children:
        for place, found in _places(child, rest):
            yield [name, *place], found


# One function per sentence of msgspec

Say = Callable[[type, dict[str, Any], Path, re.Match[str], bool], ApiError]


def _missing(root: type, document: Any, path: Path, found: re.Match[str], key: bool) -> ApiError:
    return missing_required_parameter(_written([*path, found["field"]]))


def _unknown(root: type, document: Any, path: Path, found: re.Match[str], key: bool) -> ApiError:
    return unknown_parameter(_written([*path, found["field"]]))


def _mistyped(root: type, document: Any, path: Path, found: re.Match[str], key: bool) -> ApiError:
    wanted = [word.strip() for word in found["kinds"].split("|")]
    kinds = tuple(kind for word in wanted for kind in KINDS.get(word, ()))

    def wrong(value: Any) -> bool:
        return not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)

    place, value = _find(document, path, wrong)
    # Null means absent; the service does not name it among what it expected.
    phrases = [PHRASES.get(word, f"`{word}`") for word in wanted if word != "null"] or ["null"]
    expected = phrases[0] if len(phrases) == 1 else f"one of {listed(phrases, 'or')}"
    return invalid_type(_written(place), expected, value)


def _out_of_range(root: type, document: Any, path: Path, found: re.Match[str], key: bool) -> ApiError:
    bound = int(found["bound"]) if found["bound"].lstrip("-").isdigit() else float(found["bound"])
    above = found["sign"] in ("<", "<=")
    inside = {
        "<=": lambda v: v <= bound,
        "<": lambda v: v < bound,
        ">=": lambda v: v >= bound,
        ">": lambda v: v > bound,
    }[found["sign"]]
    place, value = _find(document, path, lambda v: isinstance(v, int | float) and not inside(v))
    kind = "integer" if found["kind"] == "int" else "decimal"
    if found["sign"] in ("<", ">"):
        side = "above maximum" if above else "below minimum"
        name = _written(place)
        return invalid_request(
            f"Invalid '{name}': {kind} {side} value. Expected a value {found['sign']} {bound:g}, but got {value} instead.",
            name,
            f"{kind}_{side.replace(' ', '_').replace('minimum', 'min').replace('maximum', 'max')}_value",
        )
    say = integer_above_max_value if above else integer_below_min_value
    return say(_written(place), bound, value, kind)


def _out_of_length(root: type, document: Any, path: Path, found: re.Match[str], key: bool) -> ApiError:
    bound, above = int(found["bound"]), found["sign"] == "<="
    kind = {"str": "string", "array": "array", "object": "object"}[found["kind"]]
    if key:
        place, value = _find(document, path, lambda v: isinstance(v, dict))
        name = next((k for k in value if len(k) > bound), "") if isinstance(value, dict) else ""
        where, length = _written(place), len(name)
    else:
        place, value = _find(document, path, lambda v: (len(v) > bound) == above if _sized(v) else False)
        where, length = _written(place), len(value) if _sized(value) else 0
    unit = {
        "string": "a string with",
        "array": "an array with",
        "object": "an object with",
    }[kind]
    most = f"{'maximum' if above else 'minimum'} length {bound}"
    how = {
        "string": f"{kind} too {'long' if above else 'short'}",
        "array": f"{kind} too {'long' if above else 'short'}",
    }
    problem = how.get(kind, f"too {'many' if above else 'few'} properties")
    what = "key of the object" if key else "length"
    message = f"Invalid '{where}': {problem}. Expected {unit} {most}, but got {what} {length} instead."
    if key:
        message = f"Invalid '{where}': key too long. Expected keys of at most {bound} characters, but got one of {length}."
    code = {"string": "string", "array": "array", "object": "object"}[kind]
    return invalid_request(message, where, f"{code}_{'above_max' if above else 'below_min'}_length")


def _sized(value: Any) -> bool:
    return isinstance(value, str | list | dict)


def _mismatched(root: type, document: Any, path: Path, found: re.Match[str], key: bool) -> ApiError:
    pattern = found["pattern"].encode().decode("unicode_escape")
    place, value = _find(document, path, lambda v: isinstance(v, str) and not re.search(pattern, v))
    name = _written(place)
    shown = pattern.replace("\\Z", "$")
    message = f"Invalid '{name}': string does not match pattern. Expected a string that matches the pattern '{shown}'."
    return invalid_request(message, name, "invalid_value")


def _not_listed(root: type, document: Any, path: Path, found: re.Match[str], key: bool) -> ApiError:
    supported = _supported(root, document, path)
    place, value = _find(document, path, lambda v: v not in supported)
    return invalid_value(_written(place), value, supported)


def _mixed(root: type, document: Any, path: Path, found: re.Match[str], key: bool) -> ApiError:
    name = _written([*path, found["field"]])
    message = f"Invalid type for '{name}': expected items of one kind, but got a mixture of kinds instead."
    return invalid_request(message, name, "invalid_type")


def _tag_mistyped(root: type, document: Any, path: Path, found: re.Match[str], key: bool) -> ApiError:
    place, value = _find(document, path, lambda v: not isinstance(v, str))
    return invalid_type(_written(place), PHRASES.get(found["kind"], "another type"), value)


SENTENCES: list[tuple[re.Pattern[str], Say]] = [
    (re.compile(r"Object missing required field `(?P<field>[^`]+)`"), _missing),
    (re.compile(r"Object contains unknown field `(?P<field>[^`]+)`"), _unknown),
    (re.compile(r"Expected `(?P<kinds>[^`]+)`, got `[^`]+`"), _mistyped),
    (re.compile(r"Expected `(?P<kind>int|float)` (?P<sign>[<>]=?) (?P<bound>\S+)"), _out_of_range),
    (re.compile(r"Expected `(?P<kind>\w+)` of length (?P<sign>[<>]=) (?P<bound>\d+)"), _out_of_length),
    (re.compile(r"Expected `str` matching regex '(?P<pattern>.*)'"), _mismatched),
    (re.compile(r"Expected `(?P<kind>\w+)`"), _tag_mistyped),
    (re.compile(r"Invalid (?:enum )?value (?P<got>.*)", re.DOTALL), _not_listed),
    (re.compile(r"`(?P<field>\w+)` mixes kinds of items"), _mixed),
]


# What would have been right


@functools.cache
def _type_of(root: type) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(root)


def _supported(root: type, document: Any, path: Path) -> list[str]:
    """Return the strings that the contract allows at the path, as far as the document's tags tell."""
    types: list[msgspec.inspect.Type] = [_type_of(root)]
    value = document
    for position, step in enumerate(path):
        last = position == len(path) - 1
        types = [t for kind in _flat(types) for t in _child(kind, step, value, last)]
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            value = None
    values: list[str] = []
    for kind in _flat(types):
        if isinstance(kind, msgspec.inspect.LiteralType):
            values += [v for v in kind.values if isinstance(v, str) and v not in values]
    return values


def _flat(types: list[msgspec.inspect.Type]) -> list[msgspec.inspect.Type]:
    flat: list[msgspec.inspect.Type] = []
    for kind in types:
        flat += _flat(list(kind.types)) if isinstance(kind, msgspec.inspect.UnionType) else [kind]
    return flat


def _child(kind: msgspec.inspect.Type, step: str | int, value: Any, last: bool) -> list[msgspec.inspect.Type]:
    match kind:
        case msgspec.inspect.ListType() if isinstance(step, int):
            return [kind.item_type]
        case msgspec.inspect.DictType():
            return [kind.value_type]
        case msgspec.inspect.StructType() if kind.tag_field == step:
            return [msgspec.inspect.LiteralType((kind.tag,))] if kind.tag else []
        case msgspec.inspect.StructType():
            if kind.tag_field and isinstance(value, dict) and value.get(kind.tag_field) != kind.tag:
                return []
            return [field.type for field in kind.fields if field.encode_name == step]
        case _:
            return []
