"""Collect the elements inside an element: the items of an array, or the members of an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plumbline.answer.dialects.streams.coercion import resolved
from plumbline.answer.dialects.streams.json_text import quoted

__all__ = ["ITEM", "NESTING", "NestedElements", "ignore", "joined", "kind_of"]

ITEM = "item"
NESTING = frozenset(("array", "object"))

Write = Callable[[str], None]


class NestedElements:
    """The elements inside an element so far, which become the items of an array or the members of an object.

    A member of an unknown type becomes a list if a second one has its name, so from the first such member on,
    everything is held back up to the end of the object.

    Attributes:
        put: takes the JSON.
        types: what the schema allows.
        kind: `array` or `object`; empty until it is known.
        is_json: an object without known properties may be JSON, and the tag may stand in one of its strings.
        comma: what stands before the next element.
        held: the pieces of the JSON of each member that is held back, of each element with its name.
    """

    __slots__ = ("_keys", "comma", "held", "is_json", "kind", "put", "types")

    def __init__(self, put: Write, types: frozenset[str]) -> None:
        self.put = put
        self.types = types
        self.kind = "" if types >= NESTING else "array" if "array" in types else "object"
        self.is_json = "string" not in types
        self.comma = ""
        self.held: dict[str, list[list[str]]] = {}
        self._keys: set[str] = set()

    def begin(self, name: str, *, typed: bool) -> Write:
        """Write what stands before an element. Returns what takes its JSON.

        Args:
            name: the name of the element.
            typed: the schema gives its type.
        """
        if self.kind == "array":
            self.put(self.comma or "[")
            self.comma = ", "
            return self.put
        if typed and name in self._keys:  # The first of several counts.
            return ignore
        self._keys.add(name)
        if self.held or not typed:
            value: list[str] = []
            self.held.setdefault(name, []).append(value)
            return value.append
        self._name(name)
        return self.put

    def release(self) -> None:
        """Pass on the members that were held back."""
        for name, values in self.held.items():
            self._name(name)
            self.put(joined(["".join(value) for value in values]))

    def _name(self, name: str) -> None:
        self.put(f"{self.comma or '{'}{quoted(name)}: ")
        self.comma = ", "


def kind_of(name: str, schema: Any, root: Mapping[str, Any]) -> str:
    """Return whether a value that may be an array or an object is one, from the name of its first element."""
    properties = resolved(schema, root, ("object",)).get("properties")
    known = isinstance(properties, Mapping) and name in properties
    return "array" if name == ITEM and not known else "object"


def joined(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def ignore(_: str) -> None:
    """Drop a piece."""
