"""Judge exchanges in a process of its own, one at a time, with bounds on their size, their number and their time."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from contextlib import suppress

import msgspec

from plumbline.base.workers.turns import Turns
from plumbline.contract.wire.errors import ApiError, from_status
from plumbline.server.page.exchange import MOST_BYTES, JudgedExchange, JudgedText

__all__ = ["PageJudge"]

_SECONDS = 4.0
"""For judging one exchange, the start of the process included."""
_WAITING = 4
"""Exchanges of a client that wait for their turn; more are a 429."""


class PageJudge:
    """The process that judges. It starts with the first exchange, and again after one that took too long."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._turns = Turns(1, sys.maxsize)
        self._waiting: Counter[str] = Counter()

    async def judge(self, exchange: JudgedExchange | JudgedText, client: str) -> bytes:
        """Return the judgement of an exchange of a client, or of a text by its schema, as JSON.

        Raises:
            ApiError: 413 for a large exchange, 422 if judging it takes too long, 429 if others of the client wait, 503
                if the process ends.
        """
        size = 0
        if isinstance(exchange, JudgedExchange):
            size = len(exchange.request) + sum(len(frame) for _, frame in exchange.frames)
        if size > MOST_BYTES:
            raise from_status(
                413, f"The exchange has {size} bytes; the judge of the page takes at most {MOST_BYTES}."
            )
        if self._waiting[client] > _WAITING:
            raise from_status(429, "Your other exchanges wait to be judged. Try again in a second.")
        self._waiting[client] += 1
        try:
            async with self._turns.turn(client):
                return await self._judged(msgspec.json.encode(exchange))
        finally:
            self._waiting[client] -= 1
            self._waiting += Counter()  # Drops those with none.

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _judged(self, body: bytes) -> bytes:
        try:
            async with asyncio.timeout(_SECONDS):
                process = self._process = self._process or await _started()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(struct.pack("!I", len(body)) + body)
                await process.stdin.drain()
                (size,) = struct.unpack("!I", await process.stdout.readexactly(4))
                return await process.stdout.readexactly(size)
        except TimeoutError:
            await self.stop()
            raise from_status(
                422, f"Judging this exchange takes more than {_SECONDS:g} seconds, so it is not judged."
            ) from None
        except (OSError, EOFError):
            await self.stop()
            raise ApiError(503, "The process that judges ended. The next exchange starts it again.") from None
        except BaseException:  # The client has left. Its answer would be taken for that of the next exchange.
            await self.stop()
            raise


async def _started() -> Process:
    command = (sys.executable, "-P", "-m", "plumbline.server.page.judge_worker")
    # No other variable of the server, such as an API key, is of use to it.
    variables = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, env=variables, limit=64 * 1024**2
    )
