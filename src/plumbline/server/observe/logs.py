"""Format what the server logs: lines for people, or JSON objects for a log shipper."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal

__all__ = ["CONTROL", "FIELDS", "LOGGERS", "configure"]

FIELDS = "fields"
"""The attribute of a log record with what it is about, by name: `extra={FIELDS: {...}}`."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""Characters that break lines or direct a terminal."""
LOGGERS = ("plumbline", "uvicorn", "asyncio", "opentelemetry")
"""The loggers whose lines are formatted."""


def configure(form: Literal["text", "json"]) -> None:
    """Send the log of this process to standard error in a form: `text` or `json`."""
    handler = _Stderr()
    handler.setFormatter(_Json() if form == "json" else _Text("%(asctime)s %(levelname)s %(message)s"))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]


class _Stderr(logging.Handler):
    """Writes to what standard error is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a log that cannot be written, to a full disk for example, ends nothing."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


class _Text(logging.Formatter):
    """One line for people; a traceback follows it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line, which values from outside cannot break: messages may quote them."""
        return CONTROL.sub(" ", super().formatMessage(record))


class _Json(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, `error` with a traceback, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        line.update(getattr(record, FIELDS, {}))
        return json.dumps(line, ensure_ascii=False, default=str)
