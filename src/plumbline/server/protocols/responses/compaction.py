"""Seal the items of a conversation into one item, and open it again (ST-15).

A compaction stands for everything before it. Its sealed content is a list of items: all of them, so that nothing is
lost and nothing is shorter; or the last ones, with a summary of the others in the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from plumbline.answer.events import OutputEvent
from plumbline.contract._generated.content import InputTextContent
from plumbline.contract._generated.items import (
    CompactionBody,
    CompactionSummaryItemParam,
    EasyInputMessage,
    InputItem,
)
from plumbline.contract.wire.errors import ApiError, invalid_request
from plumbline.server.protocols.common.fields import tag_of
from plumbline.server.protocols.common.ids import new_id
from plumbline.server.protocols.common.sealing import MAX_SEALED, Sealer, UnsealError
from plumbline.server.protocols.responses.stored_items import as_context, stored_input

__all__ = [
    "SUMMARY_REQUEST",
    "AnswerEvent",
    "Compacted",
    "cannot_open",
    "compacted",
    "opened",
    "opened_all",
    "since_compaction",
    "split",
    "with_summary",
]

SUMMARY_REQUEST = (
    "Summarise this conversation so far, so that it can go on from your summary alone. Keep every fact, name, number, "
    "decision, open question and the results of tools. Write only the summary."
)
"""The request at the end of a conversation that the model summarises."""

_INTRODUCTION = "Summary of the earlier conversation:\n\n"
_PURPOSE = "compaction"


class Compacted(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag=True):
    """The event of an answer that begins with a compaction of what came before."""

    encrypted_content: str


AnswerEvent: TypeAlias = tuple[int, OutputEvent | Compacted]
"""An event of an answer with the index of its choice, which is 0."""


def compacted(items: Sequence[InputItem], sealer: Sealer) -> CompactionBody:
    """Return one item that stands for others. Compactions among them are opened first, so that they do not nest.

    Raises:
        ApiError: 400 if the items are too large to be sent back, or one of them cannot be opened.
    """
    sealed = sealer.seal(
        msgspec.json.encode(
            [msgspec.Raw(record.body) for record in stored_input(opened_all(items, sealer))]
        ).decode(),
        _PURPOSE,
    )
    if len(sealed) > MAX_SEALED:
        raise invalid_request(
            f"The conversation would have {len(sealed)} characters when compacted; this server opens at most "
            f"{MAX_SEALED}. Leave out its oldest items.",
            "input",
            "string_above_max_length",
        )
    return CompactionBody(id=new_id("cmp_"), encrypted_content=sealed)


def opened_all(items: Sequence[InputItem], sealer: Sealer | None) -> list[InputItem]:
    """Return the items from the last compaction on, with those that it stands for in its place.

    Raises:
        ApiError: 400 for content that this server did not seal (ST-16).
    """
    wanted = range(since_compaction(items), len(items))
    return [item for index in wanted for item in opened(items[index], f"input[{index}]", sealer)]


def opened(item: InputItem, where: str, sealer: Sealer | None) -> Iterator[InputItem]:
    """Yield the items that a compaction stands for; any other item is yielded as it is.

    Raises:
        ApiError: 400 for content that this server did not seal (ST-16).
    """
    if not isinstance(item, CompactionSummaryItemParam):
        yield item
        return
    try:
        if sealer is None:
            raise UnsealError("this server does not support encrypted content")
        text = sealer.open(item.encrypted_content, _PURPOSE)
    except UnsealError as error:
        raise cannot_open(where, str(error)) from None
    yield from as_context(bytes(raw) for raw in msgspec.json.decode(text, type=list[msgspec.Raw]))


def since_compaction(items: Sequence[InputItem]) -> int:
    """Return the index of the last compaction, which stands for everything before it; 0 without a compaction.

    Clients may leave out the items before a compaction. Clients that send them would otherwise pay for them twice.
    """
    found = (index for index in range(len(items) - 1, -1, -1) if tag_of(items[index]) == "compaction")
    return next(found, 0)


def split(items: Sequence[InputItem]) -> tuple[Sequence[InputItem], Sequence[InputItem]]:
    """Split a conversation before its last message of the user: the part that a summary replaces, and the rest."""
    at = next((index for index in range(len(items) - 1, -1, -1) if _is_of_user(items[index])), 0)
    return items[:at], items[at:]


def with_summary(summary: str, kept: Sequence[InputItem]) -> list[InputItem]:
    """Return the end of a conversation, which begins with a message of the user, with a summary in that message.

    The summary has no message of its own, because many chat templates want the roles to alternate.
    """
    first, *rest = kept
    assert isinstance(first, EasyInputMessage)
    content: list[Any] = [InputTextContent(text=f"{_INTRODUCTION}{summary}\n\n")]
    content += [InputTextContent(text=first.content)] if isinstance(first.content, str) else first.content
    return [EasyInputMessage(role="user", content=content), *rest]


def _is_of_user(item: InputItem) -> bool:
    return isinstance(item, EasyInputMessage) and item.role == "user"


def cannot_open(where: str, reason: str) -> ApiError:
    """Return the 400 for encrypted content that cannot be opened (ST-16)."""
    return invalid_request(
        f"The 'encrypted_content' of '{where}' cannot be opened: {reason}. Leave it out to continue without it.",
        f"{where}.encrypted_content",
        "invalid_encrypted_content",
    )
