"""Send one request and take the times of its answer."""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
import msgspec

from plumbline_conformance.bench.dialects import Api
from plumbline_conformance.reports.formats.text import printable

__all__ = ["RequestSample", "Sender"]

_LONGEST_ERROR = 300
"""Characters of an error that are kept."""
_ERROR_BYTES = 4 * _LONGEST_ERROR
_LINE_END = re.compile(rb"\r\n|\r|\n")
_LONGEST_EVENT = 16 * 1024**2
"""Bytes of an event without an end, before the answer counts as failed."""
_MOST_PIECES = 2_000_000
"""Pieces of an answer; one with more has failed. It is twice the most tokens that can be asked for."""


class RequestSample(msgspec.Struct, kw_only=True):
    """One request. Times are in seconds on a clock that all samples share."""

    sent: float
    first: float = 0.0
    """When the first piece of the answer came; 0 without one."""
    last: float = 0.0
    """When the last piece came."""
    ended: float = 0.0
    pieces: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """As the server counts them; None if it does not."""
    gaps: array[float] = msgspec.field(default_factory=lambda: array("d"))
    """Seconds between pieces; pieces that arrive together have gaps of 0."""
    error: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of the answer; without usage its pieces, which may have several tokens."""
        return self.pieces if self.output_tokens is None else self.output_tokens


class Sender:
    """Send requests of one API to one server.

    Args:
        client: without limits on connections.
        url: the address of the API's operation.
        api: how to ask and to read.
        fields: members of every body besides the prompt, such as the model.
        timeout: seconds for a whole request. A server that sends a comment now and then must not run forever.
    """

    def __init__(
        self, client: httpx2.AsyncClient, url: str, api: Api, fields: Mapping[str, Any], timeout: float
    ) -> None:
        self._client, self._url, self._api, self._fields = client, url, api, fields
        self._timeout = timeout

    async def send(self, prompt: Any, tokens: int) -> RequestSample:
        """Ask for an answer of at most `tokens` tokens and read its stream; a failure is in the sample."""
        body = msgspec.json.encode({**self._api.body(prompt, tokens), **self._fields})
        sample = RequestSample(sent=time.perf_counter())
        try:
            headers = {"content-type": "application/json"}
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream("POST", self._url, content=body, headers=headers) as answer,
            ):
                if answer.status_code != 200:
                    sample.error = f"HTTP {answer.status_code}: {await _beginning(answer)}"
                else:
                    await self._read(answer, sample)
        except TimeoutError:
            sample.error = f"the answer took more than {self._timeout:g} seconds"
        except RecursionError:
            sample.error = "an event is nested too deeply"
        except (httpx2.HTTPError, httpx2.StreamError, ValueError) as error:
            sample.error = f"{type(error).__name__}: {error}".rstrip(": ")
        sample.error = printable(sample.error)[:_LONGEST_ERROR]
        if sample.error:
            sample.gaps = array("d")  # A failed answer counts for no time.
        sample.ended = time.perf_counter()
        return sample

    async def _read(self, answer: httpx2.Response, sample: RequestSample) -> None:
        events, complete = _Events(), False
        async for data in answer.aiter_bytes():
            now = time.perf_counter()
            for event in events.read(data):
                complete = self._take(event, now, sample) or complete
            if sample.pieces > _MOST_PIECES:
                raise ValueError(f"the answer has more than {_MOST_PIECES:,} pieces")
        if not complete and not sample.error:
            sample.error = "the stream ended before the answer was complete"

    def _take(self, data: bytes, now: float, sample: RequestSample) -> bool:
        """Read the data of one event that came at `now`; return whether it ends the answer."""
        if data == b"[DONE]":
            return True
        value = msgspec.json.decode(data)
        if not isinstance(value, dict):
            raise ValueError("an event is not a JSON object")
        if value.get("error") or value.get("type") in ("error", "response.failed"):
            sample.error = f"an error in the stream: {data[:_ERROR_BYTES].decode(errors='replace')}"
        if self._api.is_piece(value):
            if sample.pieces:
                sample.gaps.append(now - sample.last)
            else:
                sample.first = now
            sample.last = now
            sample.pieces += 1
        usage = self._api.usage(value)
        if usage is not None:
            sample.prompt_tokens = usage.prompt if usage.prompt is not None else sample.prompt_tokens
            sample.output_tokens = usage.output if usage.output is not None else sample.output_tokens
        return self._api.is_end(value)


class _Events:
    """Cut a stream into the data of its events, at a cost that is linear in its bytes however they are cut."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        """Bytes of the event that has not ended."""
        self._after_return = False

    def read(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of each event that ends within these bytes.

        Raises:
            ValueError: an event is longer than 16 MiB.
        """
        # A line feed that comes first belongs to the carriage return before it.
        rest = data.removeprefix(b"\n") if self._after_return else data
        if data:
            self._after_return = data.endswith(b"\r")
        first, *others = _LINE_END.split(rest)
        self._grow(first)
        for part in others:
            if event := self._end_of_line():
                yield event
            self._grow(part)

    def _grow(self, part: bytes) -> None:
        self._line += part
        self._size += len(part)
        if self._size > _LONGEST_EVENT:
            raise ValueError("an event has no end")

    def _end_of_line(self) -> bytes:
        """Take the line; return the data of the event if the line ends one."""
        line = bytes(self._line)
        self._line.clear()
        if line.startswith(b"data:"):
            self._data.append(line[5:].strip())
        if line:
            return b""
        event = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return event


async def _beginning(answer: httpx2.Response) -> str:
    """Return the beginning of the body of an error, which may have no end."""
    text = b""
    async for data in answer.aiter_bytes():
        text += data
        if len(text) > _ERROR_BYTES:
            break
    return text[:_ERROR_BYTES].decode(errors="replace")
