"""What generated Structs need beyond msgspec: a lone tagged Struct, and a list of one kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import Struct

__all__ = ["Sole", "one_kind_of_array"]

T = TypeVar("T")

if TYPE_CHECKING:
    Sole: TypeAlias = T
else:

    class _NoOther(Struct, tag_field="type", tag=""):
        """Nobody sends this."""

    class Sole:
        """`Sole[X]` is X. msgspec lets a missing tag pass unless X is in a union, so here it is in one."""

        def __class_getitem__(cls, item: Any) -> Any:
            return item | _NoOther


def one_kind_of_array(name: str, value: Any) -> None:
    """Refuse `["a", 1]`: msgspec merges a union's array types, the contract does not."""
    if isinstance(value, list) and len({type(item) for item in value}) > 1:
        raise ValueError(f"`{name}` mixes kinds of items")
