"""Encode the images of requests before the core gets them, on a thread of its own, and keep the results.

A step never waits for an image: prompts enter the core with the rows of their images. A thread encodes one image at a
time, in turn for the waiting requests. The key of a result is the hash of the image file and of the request's
`cache_salt`; requests that use it at the same time share it. Memory is bounded: a request waits until its images fit
beside those in use, and unused ones are dropped, the least recently used first. An image that takes too long is given
up. A thread cannot be stopped, so a new one encodes the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from torch import Tensor

from plumbline.base.workers.memory import trim
from plumbline.base.workers.turns import Turns
from plumbline.engines.daemon import in_daemon_thread
from plumbline.engines.native.models.vision.layout import ImageLayout
from plumbline.engines.request import PlacedImage
from plumbline.media.images import ImageError
from plumbline.port.engine import (
    EngineClosedError,
    GenerateRequest,
    MediaItem,
    MediaPrompt,
    Modality,
    RefusedRequestError,
)

__all__ = ["ImageReader"]

_log = logging.getLogger("plumbline.engines")

_MOST_BYTES = 256 * 1024**2
"""Bytes of encoded images, in use and kept; those in use may have more if one request of the longest length has."""

_LAYOUTS = 256
"""Layouts kept by the hash of their file: each is needed twice, to expand a prompt and to read it."""

_HANGS = 2
"""Threads that may hang; until one of them ends, further images are refused."""


def _digest(item: MediaItem, salt: str | None) -> bytes:
    """Return the key of a request's image: requests with different salts share nothing, so no timing shows a hit."""
    secret = b"" if salt is None else b"\x01" + salt.encode()
    key = hashlib.blake2b(secret, digest_size=32).digest()
    return hashlib.blake2b(item.data, digest_size=32, key=key).digest()


@dataclass(eq=False, slots=True)
class _Image:
    """An image that is encoded, or will be."""

    num_rows: int
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
    needed: Mapping[bytes, ImageLayout]
    """By digest."""


def _seen(job: asyncio.Future[Tensor]) -> None:
    """Retrieve the exception of a job, so that asyncio does not log one that no request waits for."""
    if not job.cancelled():
        job.exception()


class ImageReader:
    """Read the images of prompts for one model; all methods are called on the event loop.

    Args:
        encode: returns the rows [positions, width] of an image file; called on another thread. It may give up, with any
            exception, where the function that it gets returns False: then no request needs the image any more.
        layout: returns the tokens of an image file; called on another thread. It raises `ImageError` for a file that it
            cannot read.
        placeholder: the token that a prompt has in the place of an image.
        tokens: those of layouts that prompts must not have, as rows of images stand in their place.
        row_bytes: bytes of a row.
        max_model_len: tokens of the longest request.
        whole: see `PlacedImage.whole`.
        hangs_after: seconds after which an image is given up.
    """

    def __init__(
        self,
        encode: Callable[[bytes, Callable[[], bool]], Tensor],
        layout: Callable[[bytes], ImageLayout],
        *,
        placeholder: int,
        tokens: frozenset[int],
        row_bytes: int,
        max_model_len: int,
        whole: bool = False,
        hangs_after: float = 360.0,
    ) -> None:
        self._encode, self._layout = encode, layout
        self._placeholder, self._whole = placeholder, whole
        self.tokens = tokens | {placeholder}
        """What stands for an image, or for a position of one."""
        self.capacity = max(_MOST_BYTES // row_bytes, max_model_len)
        """Rows of images in memory."""
        self._layouts: OrderedDict[bytes, ImageLayout] = OrderedDict()
        """By the hash of the file."""
        self._most_kept = _MOST_BYTES // row_bytes
        """Rows up to which unused images are kept: those of one long prompt may take gigabytes."""
        self._used: dict[bytes, _Image] = {}
        """By digest: images that requests need."""
        self._kept: OrderedDict[bytes, _Image] = OrderedDict()
        """Encoded images that no request needs, the least recently used first."""
        self._holds: dict[str, _Hold] = {}
        """The requests that have room for their images."""
        self._waiting: dict[str, tuple[_Hold, asyncio.Future[None]]] = {}
        """The requests that wait for it."""
        self._hangs_after = hangs_after
        self._turns = Turns(1, sys.maxsize)
        """One image is encoded at a time. What waits is bounded by the room for images."""
        self._hanging: list[asyncio.Future[Tensor]] = []

    @property
    def num_hanging(self) -> int:
        """How many images were given up and still occupy a thread."""
        return sum(not job.done() for job in self._hanging)

    @property
    def modalities(self) -> dict[Modality, int]:
        """See `EngineInfo.modalities`."""
        return {"image": self._placeholder}

    async def expand(self, prompt: MediaPrompt) -> list[int]:
        """Return a prompt with the tokens of each image in the place of its placeholder.

        Raises:
            RefusedRequestError: the model cannot read one of its images.
        """
        layouts = iter(await self._all_layouts(prompt.items))
        found: list[int] = []
        for token in prompt.token_ids:
            found += next(layouts).token_ids if token == self._placeholder else (token,)
        return found

    async def read(self, request: GenerateRequest) -> tuple[PlacedImage, ...]:
        """See `plumbline.engines.admission.MediaReader`."""
        assert request.media is not None
        items, salt = request.media.items, request.cache_salt
        layouts = await self._all_layouts(items)
        # Hashing a file takes a millisecond per MiB.
        digests = await asyncio.to_thread(lambda: [_digest(item, salt) for item in items])
        await self._make_room(_Hold(request, dict(zip(digests, layouts, strict=True))))
        # One after the other, so that requests of one client take turns at the thread as well.
        rows = [
            await self._rows(digest, item, number, request.client)
            for number, (digest, item) in enumerate(zip(digests, items, strict=True), 1)
        ]
        assert [len(tensor) for tensor in rows] == [layout.num_rows for layout in layouts]
        starts = self._starts(request.media.token_ids, layouts)
        return tuple(
            PlacedImage(start + part.first, part.of(tensor), digest, self._whole, part.grid)
            for start, layout, tensor, digest in zip(starts, layouts, rows, digests, strict=True)
            for part in layout.parts
        )

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
        self._drop(self._most_kept)
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
            more = sum(layout.num_rows for digest, layout in hold.needed.items() if digest not in self._used)
            if _num_rows(self._used) + more > self.capacity:
                return
            name = hold.request.request_id
            del self._waiting[name]
            self._holds[name] = hold
            for digest, layout in hold.needed.items():
                if digest not in self._used:
                    known = digest in self._kept
                    self._used[digest] = self._kept.pop(digest) if known else _Image(layout.num_rows)
                self._used[digest].users.add(name)
            self._drop(min(self.capacity, self._most_kept))
            if not turn.done():
                turn.set_result(None)

    def _drop(self, most: int) -> None:
        """Drop unused images while there are more than so many rows."""
        while self._kept and _num_rows(self._used) + _num_rows(self._kept) > most:
            self._kept.popitem(last=False)

    async def _rows(self, digest: bytes, item: MediaItem, number: int, client: str) -> Tensor:
        """Return the rows of image `number` of a request; the first request that comes to it encodes it for all."""
        image = self._used[digest]
        if image.job is None:
            image.job = asyncio.create_task(self._encoded(image, item.data, client))
            image.job.add_done_callback(_seen)
        try:
            # Others may need it, so the end of this request does not end it.
            return await asyncio.shield(image.job)
        except ImageError as error:
            raise _refused(number, error) from error

    async def _encoded(self, image: _Image, data: bytes, client: str) -> Tensor:
        """Encode an image when it is the client's turn; it gives up when no request needs it."""
        async with self._turns.turn(client):
            if self.num_hanging >= _HANGS:
                raise EngineClosedError(
                    "Images hang while they are encoded; the server takes no others now.", 10
                )
            if not image.users:
                raise asyncio.CancelledError
            encode = partial(_encode_and_trim, self._encode, data, lambda: bool(image.users))
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

    async def _all_layouts(self, items: Sequence[MediaItem]) -> list[ImageLayout]:
        """Return the layouts of images, computed on a thread, as hashing a large file takes milliseconds."""
        return await asyncio.to_thread(
            lambda: [self._layout_of(item.data, number) for number, item in enumerate(items, 1)]
        )

    def _layout_of(self, data: bytes, number: int) -> ImageLayout:
        """Return the layout of image `number` of a request. Threads may call it at the same time: the last one wins."""
        key = hashlib.blake2b(data, digest_size=32).digest()
        found = self._layouts.get(key)
        if found is None:
            try:
                found = self._layouts[key] = self._layout(data)
            except ImageError as error:
                raise _refused(number, error) from error
            while len(self._layouts) > _LAYOUTS:
                self._layouts.popitem(last=False)
        return found

    def _starts(self, token_ids: Sequence[int], layouts: Sequence[ImageLayout]) -> Iterator[int]:
        """Yield the position of the first token of each image in the expanded prompt."""
        places = (place for place, token in enumerate(token_ids) if token == self._placeholder)
        longer = 0
        for place, layout in zip(places, layouts, strict=True):
            yield place + longer
            longer += len(layout.token_ids) - 1


def _encode_and_trim(
    encode: Callable[[bytes, Callable[[], bool]], Tensor], data: bytes, needed: Callable[[], bool]
) -> Tensor:
    """Encode an image, and give the memory of its pixels back: their buffers stay in the arena of the thread."""
    try:
        return encode(data, needed)
    finally:
        trim()


def _num_rows(images: Mapping[bytes, _Image]) -> int:
    return sum(image.num_rows for image in images.values())


def _refused(number: int, error: ImageError) -> RefusedRequestError:
    return RefusedRequestError(f"the model cannot read image {number} of the request, which {error}")
