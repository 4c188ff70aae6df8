"""Encode the images of requests before the core gets them, on a thread of its own, and keep the results.

A step never waits for an image: prompts enter the core with the rows of their images. A thread encodes one image at a
time, in turn for the requests that wait. A result is known by the hash of the image's file and of the request's
`cache_salt`; requests that use it at the same time share it. Memory is bounded: a request waits until its images fit
beside those in use, and unused ones make room, the least recently used first. An image that takes too long is given up,
and a new thread goes on with the others: a thread cannot be ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from torch import Tensor

from plumbline.engines.daemon import in_daemon_thread
from plumbline.engines.media.images import ImageError
from plumbline.engines.port import (
    EngineClosedError,
    GenerateRequest,
    MediaItem,
    MediaPrompt,
    Modality,
    RefusedRequestError,
)
from plumbline.engines.request import PlacedImage

__all__ = ["ImageReader"]

_log = logging.getLogger("plumbline.engines")

_MOST_BYTES = 256 * 1024**2
"""Bytes of encoded images, in use and kept; more if one request of the longest length has more."""

_HANGS = 2
"""Threads that may hang; until one of them ends, further images are refused."""


def _digest(item: MediaItem, salt: str | None) -> bytes:
    """Return the hash by which the image of a request is known: salts share nothing, not even a duration."""
    secret = b"" if salt is None else b"\x01" + salt.encode()
    key = hashlib.blake2b(secret, digest_size=32).digest()
    return hashlib.blake2b(item.data, digest_size=32, key=key).digest()


@dataclass(eq=False, slots=True)
class _Image:
    """An image that is encoded, or will be."""

    users: set[str] = field(default_factory=set)
    """The requests that need it."""
    job: asyncio.Task[Tensor] | None = None
    """Its rows, once a request has come to it."""

    @property
    def is_encoded(self) -> bool:
        """Whether there are rows."""
        job = self.job
        return job is not None and job.done() and not job.cancelled() and job.exception() is None


class _Hold(NamedTuple):
    """A request with the images that it needs."""

    request: GenerateRequest
    needed: frozenset[bytes]


def _seen(job: asyncio.Future[Tensor]) -> None:
    """Take note of the failure of a job that no request waits for any more."""
    if not job.cancelled():
        job.exception()


class ImageReader:
    """Read the images of prompts for one model; all methods are called on the event loop.

    Args:
        encode: returns the rows [positions, width] of an image file; called on another thread. It may give up, with any
            exception, where the function that it gets returns False: then no request needs the image any more.
        placeholder: the token that a prompt has in the place of an image.
        token: the token of each of its positions.
        num_tokens: its positions.
        image_bytes: bytes of its rows.
        max_model_len: tokens of the longest request.
        before: the tokens before its positions.
        after: those after them.
        whole: see `PlacedImage.whole`.
        hangs_after: seconds after which an image is given up.
    """

    def __init__(
        self,
        encode: Callable[[bytes, Callable[[], bool]], Tensor],
        *,
        placeholder: int,
        token: int,
        num_tokens: int,
        image_bytes: int,
        max_model_len: int,
        before: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
        whole: bool = False,
        hangs_after: float = 360.0,
    ) -> None:
        self._encode = encode
        self._placeholder, self._num_before, self._whole = placeholder, len(before), whole
        self._expansion = (*before, *[token] * num_tokens, *after)
        self.tokens = frozenset((placeholder, token))
        """What stands for an image, or for a position of one."""
        self.capacity = max(_MOST_BYTES // image_bytes, max_model_len // num_tokens, 1)
        """Images with rows in memory."""
        self._used: dict[bytes, _Image] = {}
        """By digest: images that requests need."""
        self._kept: OrderedDict[bytes, _Image] = OrderedDict()
        """Encoded images that none needs, the least recently used first."""
        self._holds: dict[str, _Hold] = {}
        """The requests that have room for their images."""
        self._waiting: dict[str, tuple[_Hold, asyncio.Future[None]]] = {}
        """The requests that wait for it."""
        self._hangs_after = hangs_after
        self._turn = asyncio.Lock()
        """Held while an image is encoded."""
        self._hanging: list[asyncio.Future[Tensor]] = []

    @property
    def num_hanging(self) -> int:
        """How many images were given up and still occupy a thread."""
        return sum(not job.done() for job in self._hanging)

    @property
    def modalities(self) -> dict[Modality, int]:
        """See `EngineInfo.modalities`."""
        return {"image": self._placeholder}

    def expand(self, prompt: MediaPrompt) -> list[int]:
        """Return a prompt with the tokens of each image in the place of its placeholder."""
        found: list[int] = []
        for token in prompt.token_ids:
            found += self._expansion if token == self._placeholder else (token,)
        return found

    async def read(self, request: GenerateRequest) -> tuple[PlacedImage, ...]:
        """See `plumbline.engines.admission.MediaReader`."""
        assert request.media is not None
        items, salt = request.media.items, request.cache_salt
        # Hashing a file takes a millisecond per MiB.
        digests = await asyncio.to_thread(lambda: [_digest(item, salt) for item in items])
        await self._make_room(_Hold(request, frozenset(digests)))
        # One after the other, so that requests that wait take turns at the thread.
        rows = [await self._rows(digest, item) for digest, item in zip(digests, items, strict=True)]
        places = self._places(request.media.token_ids)
        return tuple(PlacedImage(*image, self._whole) for image in zip(places, rows, digests, strict=True))

    def forget(self, request_id: str) -> None:
        """See `plumbline.engines.admission.MediaReader`; rows stay while others do not need their room."""
        self._waiting.pop(request_id, None)
        hold = self._holds.pop(request_id, None)
        for digest in () if hold is None else hold.needed:
            image = self._used[digest]
            image.users.discard(request_id)
            if image.users:
                continue
            del self._used[digest]
            if image.is_encoded:
                self._kept[digest] = image
        self._let_in()

    def close(self) -> None:
        """Encode no further images."""
        for image in self._used.values():
            if image.job is not None:
                image.job.cancel()

    async def _make_room(self, hold: _Hold) -> None:
        """Wait until the images of a request fit, by priority, and then by client with the fewest."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[hold.request.request_id] = hold, turn
        self._let_in()
        await turn

    def _let_in(self) -> None:
        while self._waiting:
            clients = Counter(hold.request.client for hold in self._holds.values())
            hold, turn = min(
                self._waiting.values(),
                key=lambda waiting: (waiting[0].request.priority, clients[waiting[0].request.client]),
            )
            if len(self._used.keys() | hold.needed) > self.capacity:
                return
            name = hold.request.request_id
            del self._waiting[name]
            self._holds[name] = hold
            for digest in hold.needed:
                if digest not in self._used:
                    self._used[digest] = self._kept.pop(digest) if digest in self._kept else _Image()
                self._used[digest].users.add(name)
            while len(self._used) + len(self._kept) > self.capacity:
                self._kept.popitem(last=False)
            if not turn.done():
                turn.set_result(None)

    async def _rows(self, digest: bytes, item: MediaItem) -> Tensor:
        """Return the rows of an image, which the first request that comes to it encodes for all."""
        image = self._used[digest]
        if image.job is None:
            image.job = asyncio.create_task(self._encoded(image, item.data))
            image.job.add_done_callback(_seen)
        try:
            # Others may need it, so the end of this request does not end it.
            return await asyncio.shield(image.job)
        except ImageError as error:
            raise RefusedRequestError(f"the model cannot read this image, which {error}") from error

    async def _encoded(self, image: _Image, data: bytes) -> Tensor:
        """Encode an image when it is its turn; it gives up when no request needs it."""
        async with self._turn:
            if self.num_hanging >= _HANGS:
                raise EngineClosedError(
                    "Images hang while they are encoded; the server takes no others now.", 10
                )
            if not image.users:
                raise asyncio.CancelledError
            encode = partial(self._encode, data, lambda: bool(image.users))
            job = asyncio.ensure_future(in_daemon_thread(encode, "image"))
            await asyncio.wait({job}, timeout=self._hangs_after)
            if job.done():
                return job.result()
            job.add_done_callback(_seen)
            self._hanging = [each for each in self._hanging if not each.done()] + [job]
            _log.error(
                "an image of %d bytes hangs while it is encoded: it is left alone%s",
                len(data),
                "; others are refused until one ends, or the server is started again"
                if self.num_hanging >= _HANGS
                else "",
            )
            raise ImageError(
                f"takes longer than {self._hangs_after:g} seconds to encode", "image_parse_error"
            )

    def _places(self, token_ids: Sequence[int]) -> Iterator[int]:
        """Yield the first position of each image in the expanded prompt."""
        places = (place for place, token in enumerate(token_ids) if token == self._placeholder)
        for index, place in enumerate(places):
            yield place + index * (len(self._expansion) - 1) + self._num_before
