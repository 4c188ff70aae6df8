"""Seal the items of a conversation into one item, and open it again (ST-15).

Nothing is lost: the sealed content carries the items themselves. It makes a conversation portable and opaque to its
client, without a store; it does not shorten the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from plumbline._generated.items import CompactionBody, CompactionSummaryItemParam, InputItem
from plumbline.protocols.common.ids import new_id
from plumbline.protocols.common.sealing import MAX_SEALED, Sealer, UnsealError
from plumbline.protocols.responses.stored_items import as_context, stored_input
from plumbline.wire.errors import ApiError, invalid_request

__all__ = ["cannot_open", "compacted", "opened"]

_PURPOSE = "compaction"


def compacted(items: Sequence[InputItem], sealer: Sealer) -> CompactionBody:
    """Return one item that stands for others. Compactions among them are opened first, so that they do not nest.

    Raises:
        ApiError: 400 if the items are too large to be sent back, or one of them cannot be opened.
    """
    every = [item for index, one in enumerate(items) for item in opened(one, f"input[{index}]", sealer)]
    sealed = sealer.seal(
        msgspec.json.encode([msgspec.Raw(record.body) for record in stored_input(every)]).decode(), _PURPOSE
    )
    if len(sealed) > MAX_SEALED:
        raise invalid_request(
            f"The conversation would have {len(sealed)} characters when compacted; this server opens {MAX_SEALED} at "
            "most. Leave out its oldest items.",
            "input",
            "string_above_max_length",
        )
    return CompactionBody(id=new_id("cmp_"), encrypted_content=sealed)


def opened(item: InputItem, where: str, sealer: Sealer | None) -> Iterator[InputItem]:
    """Yield the items that a compaction stands for, or the item itself if it is none.

    Raises:
        ApiError: 400 for content that this server did not seal (ST-16).
    """
    if not isinstance(item, CompactionSummaryItemParam):
        yield item
        return
    try:
        if sealer is None:
            raise UnsealError("this server opens none")
        text = sealer.open(item.encrypted_content, _PURPOSE)
    except UnsealError as error:
        raise cannot_open(where, str(error)) from None
    yield from as_context(bytes(raw) for raw in msgspec.json.decode(text, type=list[msgspec.Raw]))


def cannot_open(where: str, reason: str) -> ApiError:
    """Return the 400 for encrypted content that cannot be opened (ST-16)."""
    return invalid_request(
        f"The 'encrypted_content' of '{where}' cannot be opened: {reason}. Leave it out to go on without it.",
        f"{where}.encrypted_content",
        "invalid_encrypted_content",
    )
