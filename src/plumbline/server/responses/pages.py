"""Cut lists of stored items into pages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plumbline.contract.wire.errors import ApiError, invalid_request
from plumbline.server.store.records import ItemRecord

__all__ = ["item_list", "page", "unknown_cursor"]


def page(items: Sequence[ItemRecord], *, limit: int, order: str, after: str | None) -> bytes:
    """Return one page of a list as JSON (ST-08).

    Args:
        items: the whole list, the oldest first.
        limit: how many items the page has at most.
        order: `asc` for the oldest first, else the newest.
        after: the id of the item before the page; None for the first page.

    Raises:
        ApiError: 400 if no item has the id `after`.
    """
    ordered = items if order == "asc" else items[::-1]
    start = 0
    if after is not None:
        found = next((index for index, item in enumerate(ordered) if item.id == after), None)
        if found is None:
            raise unknown_cursor(after)
        start = found + 1
    entries = ordered[start : start + limit]
    return item_list(entries, has_more=start + limit < len(ordered))


def item_list(entries: Sequence[ItemRecord], *, has_more: bool) -> bytes:
    """Return a list object with these items as JSON."""
    return msgspec.json.encode(
        {
            "object": "list",
            "data": [msgspec.Raw(item.body) for item in entries],
            "first_id": entries[0].id if entries else None,
            "last_id": entries[-1].id if entries else None,
            "has_more": has_more,
        }
    )


def unknown_cursor(after: str) -> ApiError:
    """Return the 400 for a page after an item that is not in the list."""
    return invalid_request(
        f"There is no item with id '{after[:100]}' in this list.", "after", "invalid_value"
    )
