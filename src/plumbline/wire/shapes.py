"""What generated Structs need beyond msgspec: a lone tagged Struct, and a list of one kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import Struct

__all__ = ["NO_OTHER", "Sole", "one_kind_of_array"]

T = TypeVar("T")

NO_OTHER = "\0"
"""A tag that is nobody's."""

if TYPE_CHECKING:
    Sole: TypeAlias = T
else:

    class _NoOther(Struct, tag_field="type", tag=NO_OTHER):
        """Nobody sends this; who does is refused."""

        def __post_init__(self) -> None:
            raise ValueError("no such kind")

    class Sole:
        """`Sole[X]` is X. msgspec lets a missing tag pass unless X is in a union, so here it is in one."""

        def __class_getitem__(cls, item: Any) -> Any:
            return item | _NoOther


def one_kind_of_array(name: str, value: Any) -> None:
    """Refuse `["a", 1]`: msgspec merges a union's array types, the contract does not."""
    if isinstance(value, list) and len({type(item) for item in value}) > 1:
        raise ValueError(f"`{name}` mixes kinds of items")
