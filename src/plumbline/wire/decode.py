"""Bytes to request: strict, fast when the client is right, exact in its complaint when it is not.

`decode` tries msgspec's typed decoder first. Two things that the contract allows and msgspec refuses get a
second, slower try: Responses input items without `type`, and integers written as `1.0`. What then still
fails becomes an `ApiError` 400 by `plumbline.wire.explain`. Of duplicate keys the last wins; unknown fields
are ignored (HTTP-09) but for a few that would lose a promise (`plumbline.wire.misplaced`).
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

from .errors import ApiError, unparsable_body
from .explain import explain
from .misplaced import check_places

__all__ = ["decode", "encode"]

T = TypeVar("T")

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_encoder = msgspec.json.Encoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()


def encode(value: Any) -> bytes:
    """Return the JSON of a generated Struct; fields that are `UNSET` are left out."""
    return _encoder.encode(value)


def decode(root: type[T], body: bytes) -> T:
    """Decode a request body, or raise the 400 that names what is wrong with it."""
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look into the strings that it skips.
        request: T = (_decoders.get(root) or _decoder(root)).decode(body)
        check_places(root, body)
        return request
    except msgspec.ValidationError:
        pass
    except BROKEN as error:
        raise _unparsable(error) from None
    try:
        request = _second_try(root, body)
        check_places(root, body)
        return request
    except BROKEN as error:  # The wrong value came first, but the document is broken further on.
        raise _unparsable(error) from None


def _decoder(root: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type, made once. Two threads that teach msgspec the same types at once crash the process."""
    with _making:
        return _decoders.get(root) or _decoders.setdefault(root, msgspec.json.Decoder(root))


def _second_try(root: type[T], body: bytes) -> T:
    """Decode to plain values, write them as msgspec wants them, convert; what still fails is explained."""
    raw = msgspec.json.decode(body)
    if not isinstance(raw, dict):
        raise unparsable_body("it holds another kind of value")
    repaired = _with_integers(raw)
    if "input" in repaired:
        repaired["input"] = _with_types(repaired["input"])
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


def _with_integers(value: Any) -> Any:
    """Write integral floats as integers: JSON Schema holds that `1.0` is one, msgspec that it is not."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_with_integers(item) for item in value]
        case dict():
            return {key: _with_integers(item) for key, item in value.items()}
        case _:
            return value


def _with_types(items: Any) -> Any:
    """R-13: a message may come without `type`, and so may an item reference, which is only an id."""
    if not isinstance(items, list):
        return items
    return [_with_type(item) for item in items]


def _with_type(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("type") is not None:
        return item
    if "role" in item and "type" not in item:
        return {**item, "type": "message"}
    return {**item, "type": "item_reference"} if "id" in item else item
