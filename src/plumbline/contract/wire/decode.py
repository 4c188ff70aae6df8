"""Decode request bodies strictly, and name the mistake in those that the contract does not allow.

`decode` first tries msgspec's typed decoder. The contract allows two things that msgspec refuses: Responses input items
without `type`, and integers written as `1.0`. They get a second, slower try. What still fails becomes an `ApiError` 400
by `explain`. Of duplicate keys the last wins. Unknown fields are ignored (HTTP-09), except for fields of another API
that would change the answer (`names.misplaced`).
"""

from __future__ import annotations

import contextlib
import re
import threading
from typing import Any, TypeVar

import msgspec

from plumbline.base.exact_number import ExactNumber, exact_number

from .errors import ApiError, unparsable_body
from .explain import explain
from .names.misplaced import check_places
from .names.spellings import with_one_spelling
from .size import check_size

__all__ = ["decode", "encode", "read_back"]

T = TypeVar("T")

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _literal(value: Any) -> msgspec.Raw:
    """Write a number as the client wrote it."""
    if not isinstance(value, ExactNumber):
        raise TypeError(f"a value of type {type(value).__name__} is not JSON")
    return msgspec.Raw(value.text.encode())


_encoder = msgspec.json.Encoder(enc_hook=_literal)
_decoders: dict[tuple[Any, bool], msgspec.json.Decoder[Any]] = {}
_LONG_FRACTION = re.compile(rb"\.(?:[0-9]{8}|(?<=[0-9]{8}\.)[0-9])")
"""Begins the digits after a point of a number that a double may not keep. A literal at the start is found quickly."""
_SHORT = 1 << 16
_LONG_EXPONENT = re.compile(rb"(?<=[0-9])[eE](?:[+-]?[0-9]{3}|(?<=[0-9]{16}[eE])[+-]?[0-9])")
"""Begins an exponent of a number that a double may not keep: it is large, or follows many digits."""
_EXPONENTS = tuple(f"{digit}{letter}".encode() for digit in range(10) for letter in "eE")
"""What every exponent begins with; most bodies have none, and to find that out takes a tenth of the time."""
_UNTYPED = (b"schema", b"parameters", b"tool_use", b"_json", b'"json"', b"kwargs", b"documents")
"""Names of fields that take any JSON."""
_exact = msgspec.json.Decoder(float_hook=exact_number)
_TOO_LARGE = "Number out of range"
"""msgspec's error for a number that is no finite double."""
_making = threading.Lock()


def encode(value: Any) -> bytes:
    """Return the JSON of a generated Struct; fields that are `UNSET` are left out."""
    return _encoder.encode(value)


def decode(root: type[T], body: bytes) -> T:
    """Decode a request body.

    Args:
        root: the generated Struct of the request.
        body: JSON in UTF-8.

    Raises:
        ApiError: 400 naming the field that is wrong; 413 for a body with too many values.
    """
    check_size(body)
    try:
        if not body.isascii():
            body.decode()  # msgspec does not check UTF-8 in fields that it skips
        request = _first_try(root, body)
        check_places(root, body)
        with_one_spelling(request)
        return request
    except msgspec.ValidationError:
        pass
    except BROKEN as error:
        raise _unparsable(error) from None
    try:
        request = _second_try(root, body)
        check_places(root, body)
        with_one_spelling(request)
        return request
    except BROKEN as error:  # The JSON is malformed after the value that msgspec refused.
        raise _unparsable(error) from None


def read_back(root: Any, body: bytes) -> Any:
    """Decode JSON that was a request or an answer before, such as a stored item; its numbers stay as they are.

    Args:
        root: the type; `Any` for plain values.
        body: JSON in UTF-8.

    Raises:
        msgspec.DecodeError: it is not of that type.
    """
    return _first_try(root, body)


def _may_need_exact(body: bytes) -> bool:
    """Return whether a body may have a number that a double would change in a field that takes any JSON.

    In large bodies finding the name of such a field is faster than looking at every point.
    """
    if len(body) >= _SHORT and not any(word in body for word in _UNTYPED):
        return False
    if _LONG_FRACTION.search(body) is not None:
        return True
    return any(mark in body for mark in _EXPONENTS) and _LONG_EXPONENT.search(body) is not None


def _first_try(root: type[T], body: bytes) -> T:
    """Decode to the type; the numbers of schemas and arguments stay exact (`ExactNumber`)."""
    exact = _may_need_exact(body)
    try:
        return _decoder(root, exact=exact).decode(body)
    except msgspec.DecodeError as error:
        if exact or not str(error).startswith(_TOO_LARGE):
            raise
    return _decoder(root, exact=True).decode(body)


def _decoder(root: type[T], *, exact: bool) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type, made once. msgspec crashes when two threads build decoders of a type at once."""
    found = _decoders.get((root, exact))
    if found is not None:
        return found
    # The hook is for values without a type only, such as schemas.
    with _making:
        made = msgspec.json.Decoder(root, float_hook=exact_number if exact else None)
        return _decoders.setdefault((root, exact), made)


def _second_try(root: type[T], body: bytes) -> T:
    """Decode to plain values, change them to what msgspec accepts, and convert them to the type."""
    exact = None
    with contextlib.suppress(ApiError, msgspec.DecodeError):
        # A long number of a field with a type is none that the field takes.
        if _may_need_exact(body):
            exact = _converted(root, body, _exact.decode(body))
    return _converted(root, body, msgspec.json.decode(body)) if exact is None else exact


def _converted(root: type[T], body: bytes, raw: Any) -> T:
    if not isinstance(raw, dict):
        raise unparsable_body("it is another kind of value")
    lists = [name for name in ("input", "items") if name in raw]
    if lists:
        raw |= {name: _with_types(raw[name]) for name in lists}
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(raw, root)
    repaired = _with_integers(raw) if _FRACTION.search(body) else raw
    try:
        return msgspec.convert(repaired, root)
    except msgspec.ValidationError as refused:
        message = str(refused)
    raise explain(root, repaired, message)


def _unparsable(error: Exception) -> ApiError:
    match error:
        case RecursionError():
            return unparsable_body("it is nested too deeply")
        case UnicodeDecodeError():
            return unparsable_body("it is not valid UTF-8")
        case _:
            return unparsable_body(str(error).partition(" - at ")[0])


_FRACTION = re.compile(rb"[0-9][.eE]")
_CONTAINERS = frozenset({list, dict})
_CHANGEABLE = _CONTAINERS | {float}


def _with_integers(value: Any) -> Any:
    """Turn integral floats into integers: to JSON Schema `1.0` is an integer, to msgspec it is not."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            # Lists of a million numbers come by here: call as little as possible for each.
            numbers = [int(item) if type(item) is float and item.is_integer() else item for item in value]
            return [_with_integers(item) if type(item) in _CONTAINERS else item for item in numbers]
        case dict():
            return {
                key: _with_integers(item) if type(item) in _CHANGEABLE else item
                for key, item in value.items()
            }
        case _:
            return value


def _with_types(items: Any) -> Any:
    """Add the `type` that messages and item references may leave out (R-13)."""
    if not isinstance(items, list):
        return items
    return [_with_type(item) for item in items]


def _with_type(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("type") is not None:
        return item
    if "role" in item and "type" not in item:
        return {**item, "type": "message"}
    return {**item, "type": "item_reference"} if "id" in item else item
