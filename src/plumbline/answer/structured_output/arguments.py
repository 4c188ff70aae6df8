"""Check the arguments of calls against the parameters of their tools.

A schema of a client may take years to check, such as one whose branches refer to each other, so it is checked in a
worker that may be ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from plumbline.base.workers.pool import WorkerError, WorkerPool, WorkersBusyError
from plumbline.base.workers.process import Bounds, Handler

__all__ = ["ArgumentsChecker", "handler"]

_BOUNDS = Bounds(cpu_seconds=1.0, seconds=10.0, memory=1 << 28, result=64)
_DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-04/schema#",
)
"""What schemas without `$schema` are read as, first the newest: generators still write the older ones."""


class ArgumentsChecker:
    """Check arguments in workers, which start with the first check. One event loop may use it."""

    def __init__(self) -> None:
        self._pool = WorkerPool(
            "plumbline.answer.structured_output.arguments:handler",
            bounds=_BOUNDS,
            processes=2,
            waiting=256,
            niceness=5,
        )

    async def close(self) -> None:
        """End the processes. Idempotent."""
        await self._pool.close()

    async def violates(self, parameters: Mapping[str, Any] | None, arguments: str, client: str) -> bool:
        """Return whether arguments are not a JSON object, or are not what the parameters allow.

        A schema that cannot be checked, or not within a second, is not violated.

        Args:
            parameters: the schema; None or an empty one allows any object.
            arguments: JSON text.
            client: whose call it is.
        """
        try:
            value = json.loads(arguments, parse_int=str, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return True
        if not isinstance(value, dict):
            return True
        if not parameters:
            return False
        try:
            async with self._pool.worker(client) as worker:
                return await worker.call(json.dumps([parameters, arguments]).encode()) == b"no"
        except (WorkerError, WorkersBusyError):
            return False


def handler(_: bytes) -> Handler:
    """Return what a worker runs: it takes the schema and the arguments, and answers `yes` or `no`."""

    def handle(payload: bytes) -> bytes:
        schema, arguments = json.loads(payload)
        return b"no" if _violates(schema, json.loads(arguments)) else b"yes"

    return handle


def _violates(schema: Mapping[str, Any], value: Any) -> bool:
    named = schema.get("$schema")
    for draft in _DRAFTS if named is None else (named,):
        try:
            validator = jsonschema_rs.validator_for({**schema, "$schema": draft}, retriever=_refuse)
        except (ValueError, jsonschema_rs.ReferencingError):
            continue
        return not validator.is_valid(value)
    return False


def _refuse(text: str) -> Any:
    """Refuse a number that is not finite, or a reference to another document."""
    raise ValueError(text)
