"""Find the fields of a body that its type does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

__all__ = ["header_value", "nearest_field", "unknown_fields"]

_MOST_NAMES = 16
"""Names in a header; the rest is counted, because proxies limit the size of headers."""
_LONGEST_NAME = 64
_NEAR = 0.9
"""How alike two names must be, as `difflib` measures it. At 0.88 vLLM's `ec_transfer_params`, which means something
else, is like `kv_transfer_params`."""
_LEAST_WORDS = 5
"""Characters of a name that may be the beginning or the end of a field, as `choice` of `tool_choice`."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


def unknown_fields(request: msgspec.Struct, body: bytes) -> list[str]:
    """Return the paths of the fields that decoding has dropped, such as `messages[0].cache_control`.

    A null counts as absent (HTTP-10). Only objects of known types are decoded again; texts, numbers and free objects
    are skipped, so that 10 MB cost a few milliseconds.

    Args:
        request: what `body` was decoded to.
        body: JSON that is known to decode.
    """
    return list(_dropped(request, body, ""))


def header_value(root: type[msgspec.Struct], paths: Sequence[str]) -> str:
    """Return paths as the value of a header: ASCII, at most 16 names, each cut to 64 characters.

    A name that is much like a field of the request is followed by that: `choice (tool_choice?)`.
    """
    shown = [_with_nearest(root, path) for path in paths[:_MOST_NAMES]]
    if len(paths) > _MOST_NAMES:
        shown.append(f"and {len(paths) - _MOST_NAMES} more")
    return ", ".join(shown)


def nearest_field(root: type[msgspec.Struct], path: str) -> str | None:
    """Return the field of the request that an unknown one at its top level may stand for, or None.

    >>> from plumbline.contract._generated.chat import CreateChatCompletionRequest
    >>> nearest_field(CreateChatCompletionRequest, "choice")
    'tool_choice'
    """
    if len(path) > _LONGEST_NAME or "." in path or "[" in path:
        return None
    name, fields = path.lower(), _fields(root)
    plain = _letters(name)
    for field in fields:
        if _letters(field) == plain:
            return field
    if len(name) >= _LEAST_WORDS:
        parts = [field for field in fields if field.startswith(f"{name}_") or field.endswith(f"_{name}")]
        if parts:
            return difflib.get_close_matches(name, parts, 1, 0.0)[0]
    found = difflib.get_close_matches(name, fields, 1, _NEAR)
    return found[0] if found else None


def _letters(name: str) -> str:
    """Return a name as it is spelled without the marks between its words."""
    return name.replace("_", "").replace("-", "")


def _dropped(value: Any, raw: bytes | msgspec.Raw, path: str) -> Iterator[str]:
    if isinstance(value, list):
        if _may_have_fields(value):
            for index, (item, raw_item) in enumerate(zip(value, _items.decode(raw), strict=False)):
                yield from _dropped(item, raw_item, f"{path}[{index}]")
        return
    if not isinstance(value, msgspec.Struct):
        return
    known = _fields(type(value))
    for name, raw_field in _members.decode(raw).items():
        attribute = known.get(name)
        where = f"{path}.{name}" if path else name
        if attribute is None:
            if bytes(raw_field) != b"null":
                yield where
        elif attribute:
            inner = getattr(value, attribute)
            if isinstance(inner, msgspec.Struct | list):
                yield from _dropped(inner, raw_field, where)


def _may_have_fields(value: list[Any]) -> bool:
    """Return whether items of a list, at any depth, can have fields.

    Lists are of one kind (`one_kind_of_array`), so the first item shows it; a million token ids have none.
    """
    first: Any = value
    while isinstance(first, list):
        if not first:
            return first is not value
        first = first[0]
    return isinstance(first, msgspec.Struct)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Map the names on the wire to attributes; the tag has no attribute and maps to the empty text."""
    config = kind.__struct_config__
    fields = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    if config.tag_field is not None:
        fields[config.tag_field] = ""
    return fields


def _with_nearest(root: type[msgspec.Struct], path: str) -> str:
    shown = _printable(path[:_LONGEST_NAME])
    nearest = nearest_field(root, path)
    return shown if nearest is None else f"{shown} ({nearest}?)"


def _printable(name: str) -> str:
    return "".join(c if " " <= c <= "~" and c != "," else "?" for c in name)
