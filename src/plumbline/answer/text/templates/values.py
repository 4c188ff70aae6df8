"""Define template values that work in every style of template: tool arguments, null content, lists of the request.

Some templates join arguments with strings, others write them with `tojson` or loop over their members. Some test
whether content `is none`, others join or print it and would print `None`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Arguments", "GivenList", "NoContent"]


class GivenList(list[Any]):
    """A list of the request, which no template may change."""


class Arguments(dict[str, Any]):
    """The arguments of an earlier call: an object that prints as the JSON that the model wrote.

    Args:
        members: the object.
        text: its JSON.
    """

    def __init__(self, members: Mapping[str, Any], text: str) -> None:
        super().__init__(members)
        # Templates read members as attributes (`arguments.city`), so this name must not be a member's.
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return self._text + str(other) if isinstance(other, (str, Arguments)) else NotImplemented

    def __radd__(self, other: object) -> str:
        return str(other) + self._text if isinstance(other, str) else NotImplemented


class NoContent:
    """Null content: `is none` is true, it prints as the empty string, and it equals None and ""."""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return ""

    def __repr__(self) -> str:
        return "None"

    def __eq__(self, other: object) -> bool:
        return other is None or other == "" or isinstance(other, NoContent)

    def __hash__(self) -> int:
        return hash(None)

    def __add__(self, other: object) -> str:
        return other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> str:
        return other if isinstance(other, str) else NotImplemented

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        return iter("")

    def __contains__(self, part: object) -> bool:
        return part == ""

    def __getitem__(self, index: Any) -> str:
        return ""[index]

    def __getattr__(self, name: str) -> Any:
        # Support the methods of a string, such as `split` and `startswith`.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr("", name)
