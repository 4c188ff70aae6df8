"""Send frames as a stream: comments while it is silent, and a failure as its last event."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import aclosing

from plumbline.server.failures import FAILURES, as_api_error
from plumbline.server.frames import Frames
from plumbline.server.observe.metrics import Metrics
from plumbline.server.settings import Settings
from plumbline.server.streams import KeepAlive, close_with_request
from plumbline.wire.call import Call
from plumbline.wire.errors import ApiError, envelope
from plumbline.wire.reply import EventReply
from plumbline.wire.sse import DONE, frame

__all__ = ["Replies"]

_log = logging.getLogger("plumbline.server")


class Replies:
    """The streams of a server."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._interval = settings.keep_alive_interval
        self._metrics = metrics

    def stream(self, call: Call, frames: Frames, headers: Mapping[str, str] | None = None) -> EventReply:
        """Send frames, comments and `[DONE]` until the client leaves."""
        return self.as_they_are(self._with_done(frames, call), headers)

    def as_they_are(self, frames: Frames, headers: Mapping[str, str] | None = None) -> EventReply:
        """Send frames that have an end of their own, and comments, until the client leaves."""
        events = KeepAlive(frames, self._interval)
        close_with_request(events.aclose)
        return EventReply(events, headers or {})

    async def _with_done(self, frames: Frames, call: Call) -> Frames:
        """Send frames, then `[DONE]`; a failure becomes one error event before it (ERR-12)."""
        try:
            async with aclosing(frames):
                async for item in frames:
                    yield item
        except Exception as error:
            yield frame(envelope(self.midway(error, call)))
        yield DONE

    def midway(self, error: Exception, call: Call) -> ApiError:
        """Return the API error for a failure after the stream has begun, and log what was not raised by design."""
        self._metrics.failed_midway()
        if not isinstance(error, FAILURES):
            # ERR-13: the traceback goes to the log, not to the client.
            _log.error("request %s failed after its stream had begun", call.request_id, exc_info=error)
        return as_api_error(error)
