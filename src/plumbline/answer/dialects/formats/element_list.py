"""Write repeated elements of one name as a JSON list."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from plumbline.answer.dialects.streams.coercion import allowed_types, coerce

__all__ = ["ElementList"]


class ElementList:
    """Write the elements of one name as a JSON list, for a schema that allows only lists.

    Args:
        put: takes the JSON.
        key: the name.
        schema: the schema of an item.
        root: the parameters of the tool.

    Attributes:
        begun: whether the value was not a list, so that it became the first item of one.
    """

    def __init__(self, put: Callable[[str], None], key: str, schema: Any, root: Mapping[str, Any]) -> None:
        self._put = put
        self.key = key
        self.schema = schema
        self._types = allowed_types(schema, root)
        self._passed = self.begun = False
        self._comma = "["

    def first(self, piece: str) -> None:
        """Take the value of the first element, piece by piece."""
        if self._passed or piece.startswith("["):
            self._passed = True
            self._put(piece)
            return
        self.begun = True
        value = json.loads(piece)  # Only lists come in pieces.
        self.next(coerce(value, self._types) if isinstance(value, str) else piece)

    def next(self, piece: str) -> None:
        """Take the value of an item, piece by piece."""
        self._put(self._comma + piece)
        self._comma = ""

    def another(self) -> None:
        """Begin another item."""
        self._comma = ", "

    def end(self) -> None:
        """End the list."""
        self._put("]")
