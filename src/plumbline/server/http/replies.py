"""Send frames as a stream: keep-alives while it is silent, and a failure as its last event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from http import HTTPStatus

from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract.wire.call import ERROR, Call
from plumbline.contract.wire.error_forms import message_error_frame
from plumbline.contract.wire.errors import ApiError, envelope
from plumbline.contract.wire.reply import EventReply
from plumbline.contract.wire.sse import DONE, comment, frame
from plumbline.server.http.failures import FAILURES, as_api_error
from plumbline.server.http.frames import Frames
from plumbline.server.http.streams import KeepAlive, close_with_request
from plumbline.server.observe.metrics import Metrics
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.settings import Settings

__all__ = ["CHUNKS", "MESSAGES", "Replies", "StreamForm"]

_log = logging.getLogger("plumbline.server")


@dataclass(frozen=True, slots=True)
class StreamForm:
    """What the streams of an API have besides its events."""

    failure: Callable[[ApiError, Call], bytes]
    """Frames a failure."""
    end: bytes = DONE
    """Comes last, also after a failure."""
    keep_alive: bytes = comment()
    """Shows that a silent stream lives."""
    interval: float | None = None
    """Seconds of silence before it; 0 sends none, None leaves it to the server."""

    @classmethod
    def of_chunks(cls, request: CreateChatCompletionRequest | CreateCompletionRequest) -> StreamForm:
        """Return the form of a stream of chunks, with the interval that the request wants."""
        interval = or_default(request.sse_ping_interval, None)
        return CHUNKS if interval is None else replace(CHUNKS, interval=max(interval, 0))


CHUNKS = StreamForm(lambda error, _: frame(envelope(error)))
"""A failure is one error event before `[DONE]` (ERR-12)."""
MESSAGES = StreamForm(
    lambda error, call: message_error_frame(error, call.request_id),
    end=b"",
    keep_alive=frame(b'{"type":"ping"}', "ping"),
)
"""A failure is the last event (MSG-11)."""


class Replies:
    """The streams of a server."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._interval = settings.keep_alive_interval
        self._metrics = metrics

    def stream(
        self, call: Call, frames: Frames, headers: Mapping[str, str] | None = None, form: StreamForm = CHUNKS
    ) -> EventReply:
        """Send frames, keep-alives and the end of the form until the client leaves."""
        return self.as_they_are(self._with_end(frames, call, form), headers, form)

    def as_they_are(
        self, frames: Frames, headers: Mapping[str, str] | None = None, form: StreamForm = CHUNKS
    ) -> EventReply:
        """Send frames that have an end of their own, and keep-alives, until the client leaves."""
        events = KeepAlive(frames, self.interval(form), form.keep_alive)
        close_with_request(events.aclose)
        return EventReply(events, headers or {})

    def interval(self, form: StreamForm) -> float:
        """Return after how many seconds of silence a stream gets a keep-alive; 0 for none."""
        return self._interval if form.interval is None else form.interval

    async def _with_end(self, frames: Frames, call: Call, form: StreamForm) -> Frames:
        """Send frames, then the end; a failure becomes one event before it (ERR-12)."""
        try:
            async with aclosing(frames):
                async for item in frames:
                    yield item
        except Exception as error:
            yield form.failure(self.midway(error, call), call)
        if form.end:
            yield form.end

    def midway(self, error: Exception, call: Call) -> ApiError:
        """Return the API error for a failure after the stream has begun, and log what was not raised by design."""
        if not isinstance(error, FAILURES):
            # ERR-13: the traceback goes to the log, not to the client.
            _log.error("request %s failed after its stream had begun", call.request_id, exc_info=error)
        found = as_api_error(error)
        self._metrics.failed_midway(found.code or found.type)
        call.facts[ERROR] = found.code or found.type
        if found.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            _log.error(
                "request %s: status %d in its stream: %s", call.request_id, found.status, found.message
            )
        return found
