"""Help generated Structs where msgspec is laxer than the contract: single tagged Structs, lists of one kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import Struct

__all__ = ["NO_OTHER", "Sole", "one_kind_of_array"]

T = TypeVar("T")

NO_OTHER = "\0"
"""A tag that no schema has."""

if TYPE_CHECKING:
    Sole: TypeAlias = T
else:

    class _NoOther(Struct, tag_field="type", tag=NO_OTHER):
        """Refuse every value with this tag."""

        def __post_init__(self) -> None:
            raise ValueError("no such kind")

    class Sole:
        """`Sole[X]` is X with a required tag. msgspec requires tags in unions only, so this makes a union."""

        def __class_getitem__(cls, item: Any) -> Any:
            return item | _NoOther


def one_kind_of_array(name: str, value: Any) -> None:
    """Refuse `["a", 1]`: the contract has arrays of one kind, and msgspec merges them to one array type."""
    if isinstance(value, list) and len({type(item) for item in value}) > 1:
        raise ValueError(f"`{name}` mixes kinds of items")
