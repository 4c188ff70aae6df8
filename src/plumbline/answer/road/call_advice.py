"""Advise the operator once when a model's calls fail one after the other."""

from __future__ import annotations

import logging

__all__ = ["CallAdvice"]

_log = logging.getLogger("plumbline.calls")

_MANY = 3
"""Answers in a row whose calls failed."""


class CallAdvice:
    """Count the answers in a row whose calls could not be used: no such tool, or other arguments than it takes."""

    def __init__(self) -> None:
        self._failed = 0
        self._given = False

    def worked(self) -> None:
        """Take an answer with a call that a client can run."""
        self._failed = 0

    def failed(self, request_id: str) -> None:
        """Take an answer whose calls are text; the last of many in a row is logged with what helps."""
        self._failed += 1
        if self._failed >= _MANY and not self._given:
            self._given = True
            _log.warning(
                "%s: the calls of %d answers in a row could not be used: no tool of the request has their name, or its "
                "parameters do not allow their arguments. tool_choice required constrains a model to the tools "
                "and their parameters; --tool-parser says how it writes calls, if the start found none",
                request_id,
                self._failed,
            )
