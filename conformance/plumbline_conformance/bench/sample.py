"""Send one request and take the times of its answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from plumbline_conformance.bench.dialects import Api

__all__ = ["Sample", "Sender"]

_LONGEST_ERROR = 300
"""Characters of an error that are kept."""
_LONGEST_EVENT = 16 * 1024**2
"""Bytes of an event without an end, before the answer counts as failed."""


class Sample(msgspec.Struct, kw_only=True):
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
    gaps: list[float] = msgspec.field(default_factory=list)
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
    """

    def __init__(self, client: httpx.AsyncClient, url: str, api: Api, fields: Mapping[str, Any]) -> None:
        self._client, self._url, self._api, self._fields = client, url, api, fields

    async def send(self, prompt: Any, tokens: int) -> Sample:
        """Ask for an answer of at most `tokens` tokens and read its stream; a failure is in the sample."""
        body = msgspec.json.encode({**self._api.body(prompt, tokens), **self._fields})
        sample = Sample(sent=time.perf_counter())
        try:
            headers = {"content-type": "application/json"}
            async with self._client.stream("POST", self._url, content=body, headers=headers) as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode(errors="replace")
                    sample.error = f"HTTP {answer.status_code}: {text}"
                else:
                    await self._read(answer, sample)
        except (httpx.HTTPError, httpx.StreamError, ValueError) as error:
            sample.error = f"{type(error).__name__}: {error}".rstrip(": ")
        sample.error = sample.error[:_LONGEST_ERROR]
        sample.ended = time.perf_counter()
        return sample

    async def _read(self, answer: httpx.Response, sample: Sample) -> None:
        rest, complete = b"", False
        async for data in answer.aiter_bytes():
            now = time.perf_counter()
            *events, rest = (rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
            if len(rest) > _LONGEST_EVENT:
                raise ValueError("an event has no end")
            for event in events:
                complete = self._take(event, now, sample) or complete
        if not complete and not sample.error:
            sample.error = "the stream ended before the answer was complete"

    def _take(self, event: bytes, now: float, sample: Sample) -> bool:
        """Read one event that came at `now`; return whether it ends the answer."""
        data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if not data:
            return False
        if data == b"[DONE]":
            return True
        value = msgspec.json.decode(data)
        if not isinstance(value, dict):
            raise ValueError("an event is not a JSON object")
        if value.get("error") or value.get("type") in ("error", "response.failed"):
            sample.error = f"an error in the stream: {data.decode(errors='replace')}"
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
