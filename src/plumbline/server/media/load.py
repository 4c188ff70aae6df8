"""Load the files that requests name, with bounds on their number, bytes, pixels, length and time."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

import msgspec

from plumbline.answer.turn import ChatPrompt, MediaReference, Prompt, media_of, with_media
from plumbline.base.workers.pool import Bounds, WorkerError, WorkerPool, WorkersBusyError
from plumbline.base.workers.turns import PlacesFullError, Turns
from plumbline.contract.wire.errors import ApiError, invalid_request, rate_limited
from plumbline.port.engine import MediaItem, Modality
from plumbline.server.http.streams import close_with_request
from plumbline.server.limits.held_bytes import ByteBudget, Reservation
from plumbline.server.media.checking import CheckedFile, FileQuestion, RefusedFile
from plumbline.server.media.fetch import Fetcher, FetchError
from plumbline.server.settings import Settings

__all__ = ["MediaLoader"]

_MAX_DECODERS = 2
"""Files that are decoded at a time, one of each client; an image of 40 million pixels takes 320 MB."""
_MAX_WAITING = 4096
"""Files that wait to be decoded; their bytes are reserved."""
_CPU_SECONDS = 20.0
"""For an image or a sound. An interlaced PNG of 40 million pixels takes 3 s."""
_SECONDS = 120.0
_MEMORY = 1 << 30
"""Bytes of a decoder, besides those of its pixels. FFmpeg has no bound of its own for the tables of a file."""
_PIXEL_BYTES = 32
_BLANKS = "\t\n\f\r "
_EXCEEDED = {
    "time": "takes more than {cpu_seconds} seconds of a CPU to decode",
    "memory": "needs too much memory to decode",
    "result": "is too large",
    "crash": "cannot be decoded: the decoder broke off",
}
_MAX_FETCHES = 9
"""Files that are fetched at a time, of which one client has all but one at most; each has as many bytes reserved as the
request may still have."""
_PACKAGES: Mapping[Modality, tuple[str, str]] = MappingProxyType(
    {
        "audio": ("soundfile", "plumbline[audio]"),
        "image": ("PIL", "plumbline[images]"),
        "video": ("av", "plumbline[video]"),
    }
)
"""The package that decodes each kind, and the extra that brings it."""


@dataclass
class _Left:
    """The remaining limits for the files of a request."""

    data: int
    """Bytes."""
    pixels: int
    """Of images and of the frames of videos."""
    seconds: float
    """Of audio."""


class MediaLoader:
    """Load files from data URLs, and from http(s) URLs if the operator allows it.

    Args:
        settings: the bounds.
        fetcher: fetches URLs; None fetches from public addresses.
    """

    def __init__(self, settings: Settings, fetcher: Fetcher | None = None) -> None:
        self._settings = settings
        self._fetcher = fetcher or Fetcher(settings.media_timeout)
        self._workers = WorkerPool(
            "plumbline.server.media.checking:handler",
            bounds=Bounds(
                _CPU_SECONDS,
                _SECONDS,
                _MEMORY + _PIXEL_BYTES * settings.max_image_pixels,
                settings.max_media_bytes,
            ),
            processes=_MAX_DECODERS,
            waiting=_MAX_WAITING,
            niceness=5,
        )
        self._fetches = Turns(_MAX_FETCHES, _MAX_WAITING)
        limit = settings.max_media_in_flight
        self.memory = ByteBudget(limit, max(limit // 2, min(limit, settings.max_media_bytes)))
        """Of the files of requests that are being answered."""

    async def close(self) -> None:
        """End the processes that decode. Idempotent; a later file starts them again."""
        await self._workers.close()

    async def load(self, prompts: Sequence[Prompt], client: str) -> list[Prompt]:
        """Return prompts with files in the place of references.

        Args:
            prompts: the prompts.
            client: whose they are; clients take turns where files are decoded.

        Raises:
            ApiError: 400 for a file that is too large, cannot be fetched or decoded; 429 if the files of other
                requests need too much memory, or too many wait to be decoded.
        """
        references = [
            part for prompt in prompts for part in media_of(prompt) if isinstance(part, MediaReference)
        ]
        if not references:
            return list(prompts)
        most = self._settings.max_media_items
        if len(references) > most:
            raise invalid_request(
                f"The request has {len(references)} files; this server accepts at most {most}.",
                references[most].field,
                "invalid_value",
            )
        # Once for each kind: Python looks through its folders, which took a second for 8,000 files.
        for reference in {each.modality: each for each in reversed(references)}.values():
            package, extra = _PACKAGES[reference.modality]
            if find_spec(package) is None:
                raise invalid_request(
                    f"This server cannot decode {reference.modality} files: {package} is not installed ({extra}).",
                    reference.field,
                )
        loaded = await self._load(references, client)
        return [
            with_media(prompt, loaded) if isinstance(prompt, ChatPrompt) else prompt for prompt in prompts
        ]

    async def _load(
        self, references: Sequence[MediaReference], client: str
    ) -> dict[MediaReference, MediaItem]:
        """Load each file once. The bytes of the result stay reserved until the current request is over."""
        loaded: dict[MediaReference, MediaItem] = {}
        settings = self._settings
        left = _Left(settings.max_media_bytes, settings.max_image_pixels, settings.max_audio_seconds)
        reserved = Reservation(self.memory, client)
        try:
            for reference in references:
                if reference not in loaded:
                    loaded[reference] = await self._item(reference, left, reserved, client)
        except BaseException:
            reserved.release()
            raise

        async def release() -> None:
            reserved.release()

        try:
            close_with_request(release)
        except LookupError:  # A turn of a WebSocket is not a request with an end.
            reserved.release()
        return loaded

    async def _item(
        self, reference: MediaReference, left: _Left, reserved: Reservation, client: str
    ) -> MediaItem:
        """Return a file, with its bytes reserved; what the request may still have becomes less."""
        if reference.url[:5].lower() == "data:":
            text = _base64_text(reference, left.data)
            reserved.change(_decoded_size(text))
            data = await asyncio.to_thread(_decoded, reference, text)
        else:
            data = await self._fetched(reference, left.data, reserved, client)
        left.data -= len(data)
        item = await self._checked(data, reference, left, client)
        reserved.change(len(item.data) - len(data))
        return item

    async def _fetched(
        self, reference: MediaReference, most: int, reserved: Reservation, client: str
    ) -> bytes:
        """Return a file of the web of at most `most` bytes, which are reserved while it is fetched."""
        if not self._settings.allow_media_urls:
            raise _refused(
                reference,
                "cannot be fetched: this server accepts data URLs only (--allow-media-urls allows others)",
                f"invalid_{reference.modality}_url",
            )
        most = min(most, self.memory.limit)
        try:
            async with self._fetches.turn(client):
                reserved.change(most)
                data = await self._fetcher.fetch(reference.url, most)
        except PlacesFullError:
            raise rate_limited("Too many files wait to be fetched; try again later.") from None
        except FetchError as error:
            raise _refused(reference, str(error), f"failed_to_download_{reference.modality}") from error
        reserved.change(len(data) - most)
        return data

    async def _checked(self, data: bytes, reference: MediaReference, left: _Left, client: str) -> MediaItem:
        """Decode a file to check it; return it, and subtract its size from what is left."""
        settings, kind = self._settings, reference.modality
        question = FileQuestion(
            kind, data, left.pixels, left.seconds, settings.max_video_frames, reference.reduced
        )
        cpu_seconds = settings.max_video_cpu_seconds if kind == "video" else _CPU_SECONDS
        try:
            answer = await self._workers.call(msgspec.msgpack.encode(question), client, cpu_seconds)
            found = msgspec.msgpack.decode(answer, type=CheckedFile | RefusedFile)
        except WorkersBusyError:
            raise rate_limited("Too many files wait to be decoded; try again later.") from None
        except WorkerError as error:
            why = _EXCEEDED[error.reason].format(cpu_seconds=f"{cpu_seconds:g}")
            found = RefusedFile(why, "image_parse_error" if kind == "image" else "invalid_value")
        if isinstance(found, RefusedFile):
            raise _refused(reference, found.why, found.code)
        left.pixels -= found.pixels
        left.seconds -= found.seconds
        if found.smaller is not None:
            return MediaItem(media_type="image/png", data=found.smaller)
        return MediaItem(
            modality=kind,
            media_type=found.media_type or _named_type(reference),
            data=data,
            frames=settings.max_video_frames if kind == "video" else 0,
        )


def _refused(reference: MediaReference, why: str, code: str) -> ApiError:
    """Return the 400 for a file; the codes of images are OpenAI's."""
    return invalid_request(f"The {reference.modality} of '{reference.field}' {why}.", reference.field, code)


def _base64_text(reference: MediaReference, most: int) -> str:
    """Return the plain base64 of a data URL with a file of at most `most` bytes."""
    head, comma, text = reference.url.partition(",")
    kind, *options = (option.strip() for option in head[5:].lower().split(";"))
    if not comma or "base64" not in options:
        example = "data:video/mp4" if reference.modality == "video" else "data:image/png"
        raise _refused(
            reference,
            f"is not a data URL with base64, {example};base64,…",
            f"invalid_{reference.modality}_url",
        )
    if kind and not kind.startswith(f"{reference.modality}/"):
        code = f"unsupported_{reference.modality}_media_type"
        raise _refused(reference, f"has the media type {kind[:100]!r}", code)
    text = _plain_base64(text)
    if _decoded_size(text) > most:
        why = f"has more bytes than the {most} that are left"
        raise _refused(reference, why, f"{reference.modality}_file_too_large")
    return text


def _plain_base64(text: str) -> str:
    """Return base64 as the URL standard reads it: without white space, and padded where it has no padding."""
    for blank in _BLANKS:
        text = text.replace(blank, "")
    return text if text[-1:] == "=" else text + "=" * (-len(text) % 4)


def _decoded_size(text: str) -> int:
    """Return how many bytes a base64 text has, or would have if it is not valid."""
    return max(0, len(text) * 3 // 4 - text.count("=", len(text) - 2))


def _decoded(reference: MediaReference, text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (ValueError, UnicodeError):
        raise _refused(reference, "is not valid base64", f"invalid_base64_{reference.modality}") from None


def _named_type(reference: MediaReference) -> str:
    """Return the media type that a data URL names, or an empty string."""
    return reference.url[5:].partition(";")[0] if reference.url[:5].lower() == "data:" else ""
