"""What chat templates are given where they disagree about what they get: a call's arguments, and content that is null.

Some templates join arguments with strings, others write them with `tojson` or walk over their members. Some ask whether
content `is none`, others join it with strings or print it, and would print `None`. Each of these is right for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Arguments", "NoContent"]


class Arguments(dict[str, Any]):
    """The arguments of an earlier call: an object, and as text the JSON that the model wrote.

    Args:
        members: the object.
        text: its JSON.
    """

    def __init__(self, members: Mapping[str, Any], text: str) -> None:
        super().__init__(members)
        self._text = text  # No name that a template could mean a member by.

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return self._text + str(other) if isinstance(other, (str, Arguments)) else NotImplemented

    def __radd__(self, other: object) -> str:
        return str(other) + self._text if isinstance(other, str) else NotImplemented


class NoContent:
    """Content that is null: `is none` holds of it, and as text it is empty. It compares equal to both."""

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
        # What a string can do, such as `split` and `startswith`, it can.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr("", name)
