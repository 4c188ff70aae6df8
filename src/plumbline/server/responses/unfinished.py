"""Put a response together that another server has not finished, or could not finish (R-04)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plumbline.contract._generated.responses import Response
from plumbline.contract.wire.decode import encode, read_back
from plumbline.contract.wire.errors import engine_unavailable
from plumbline.server.protocols.responses.event_log import EventLog, Unfinished
from plumbline.server.protocols.responses.writer import CANCELLED
from plumbline.server.store.records import ResponseRecord, output_items

__all__ = ["interrupted", "unfinished"]

ABANDONED = engine_unavailable("The server stopped before the response was complete.")
"""The error of a response interrupted by a server stop.

Another server does not generate it again: the client has seen a part of an answer that would come out differently, and
its tools have been called.
"""


def unfinished(record: ResponseRecord) -> Unfinished:
    """Return an unfinished response without its parts."""
    response = read_back(Response, record.response)
    return Unfinished(response, EventLog.decode(record.events))


def interrupted(record: ResponseRecord, parts: Sequence[bytes], is_cancelled: bool) -> ResponseRecord:
    """Return the failed or cancelled response that an unfinished one becomes, with what it had."""
    found = unfinished(record)
    try:
        for _ in found.add(parts):
            pass
    except msgspec.DecodeError:  # They are of a newer version.
        found = unfinished(record)
    for _ in found.end(CANCELLED if is_cancelled else ABANDONED):
        pass
    response = encode(found.writer.response)
    return msgspec.structs.replace(
        record,
        status="cancelled" if is_cancelled else "failed",
        response=response,
        output=output_items(response),
        events=found.log.encode(),
    )
