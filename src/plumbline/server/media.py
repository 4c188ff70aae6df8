"""Load the files that requests name, with bounds on their number, bytes, pixels, length and time."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

from plumbline.engines.audio import SAMPLE_RATE, AudioError, decode_audio
from plumbline.engines.images import ImageError, decode_image, reduced_image
from plumbline.engines.port import MediaItem, Modality
from plumbline.server.fetch import Fetcher, FetchError
from plumbline.server.settings import Settings
from plumbline.server.streams import close_with_request
from plumbline.turn import ChatPrompt, MediaReference, Prompt, media_of, with_media
from plumbline.wire.errors import ApiError, invalid_request, rate_limited

__all__ = ["MediaLoader"]

_MAX_DECODERS = 2
"""Files that are decoded at a time; an image of 40 million pixels takes 120 MB."""
_PACKAGES: Mapping[Modality, tuple[str, str]] = MappingProxyType(
    {"audio": ("soundfile", "plumbline[audio]"), "image": ("PIL", "plumbline[images]")}
)
"""The package that decodes each kind, and the extra that brings it."""


@dataclass
class _Left:
    """What the files of a request may still have."""

    data: int
    """Bytes."""
    pixels: int
    seconds: float


class MediaLoader:
    """Load files from data URLs, and from http(s) URLs if the operator allows it.

    Args:
        settings: the bounds.
        fetcher: fetches URLs; None fetches from public addresses.
    """

    def __init__(self, settings: Settings, fetcher: Fetcher | None = None) -> None:
        self._settings = settings
        self._fetcher = fetcher or Fetcher(settings.media_timeout)
        self._decoders = asyncio.Semaphore(_MAX_DECODERS)
        self._in_flight = 0
        """Bytes of the files of requests that are being answered."""

    async def load(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Return prompts with files in the place of references.

        Raises:
            ApiError: 400 for a file that is too large, cannot be fetched or decoded; 429 if the files of other
                requests need too much memory.
        """
        references = [
            part for prompt in prompts for part in media_of(prompt) if isinstance(part, MediaReference)
        ]
        if not references:
            return list(prompts)
        for reference in references:
            package, extra = _PACKAGES[reference.modality]
            if find_spec(package) is None:
                raise invalid_request(
                    f"This server cannot decode {reference.modality} files: {package} is not installed ({extra}).",
                    reference.field,
                )
        most = self._settings.max_media_items
        if len(references) > most:
            raise invalid_request(
                f"The request has {len(references)} files; this server takes {most} at most.",
                references[most].field,
                "invalid_value",
            )
        loaded = await self._load(references)
        return [
            with_media(prompt, loaded) if isinstance(prompt, ChatPrompt) else prompt for prompt in prompts
        ]

    async def _load(self, references: Sequence[MediaReference]) -> dict[MediaReference, MediaItem]:
        loaded: dict[MediaReference, MediaItem] = {}
        settings = self._settings
        left = _Left(settings.max_media_bytes, settings.max_image_pixels, settings.max_audio_seconds)
        for reference in references:
            if reference in loaded:
                continue
            data = await self._bytes(reference, left.data)
            left.data -= len(data)
            async with self._decoders:
                try:
                    check = _CHECKS[reference.modality]
                    loaded[reference] = await asyncio.to_thread(check, data, reference, left)
                except (AudioError, ImageError) as error:
                    raise _refused(reference, str(error), error.code) from error
        self._reserve(sum(len(item.data) for item in loaded.values()))
        return loaded

    def _reserve(self, size: int) -> None:
        """Count the bytes until the current request is over."""
        if self._in_flight + size > self._settings.max_media_in_flight:
            raise rate_limited("The files of other requests need all memory for files; try again later.")
        self._in_flight += size

        async def release() -> None:
            self._in_flight -= size

        try:
            close_with_request(release)
        except LookupError:  # A turn of a WebSocket is no request with an end.
            self._in_flight -= size

    async def _bytes(self, reference: MediaReference, most: int) -> bytes:
        """Return a file of at most `most` bytes."""
        if reference.url[:5].lower() == "data:":
            return await asyncio.to_thread(_from_data_url, reference, most)
        if not self._settings.allow_media_urls:
            raise _refused(
                reference,
                "cannot be fetched: this server takes data URLs only (--allow-media-urls allows others)",
                "invalid_image_url",
            )
        try:
            return await self._fetcher.fetch(reference.url, most)
        except FetchError as error:
            raise _refused(reference, str(error), "failed_to_download_image") from error


def _refused(reference: MediaReference, why: str, code: str) -> ApiError:
    name = "image" if reference.modality == "image" else "audio"
    return invalid_request(f"The {name} of '{reference.field}' {why}.", reference.field, code)


def _from_data_url(reference: MediaReference, most: int) -> bytes:
    """Return the file of a data URL."""
    head, comma, text = reference.url.partition(",")
    kind, *options = head[5:].lower().split(";")
    if not comma or "base64" not in options:
        raise _refused(reference, "is no data URL with base64, data:image/png;base64,…", "invalid_image_url")
    if kind and not kind.startswith(f"{reference.modality}/"):
        raise _refused(reference, f"has the media type {kind[:100]!r}", "unsupported_image_media_type")
    if len(text) * 3 // 4 > most + 2:
        raise _refused(
            reference, f"has more bytes than the {most} that are left", _CODES[reference.modality][0]
        )
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (ValueError, UnicodeError):
        raise _refused(reference, "is no valid base64", _CODES[reference.modality][1]) from None


def _check_image(data: bytes, reference: MediaReference, left: _Left) -> MediaItem:
    """Decode an image to check it; returns it, made smaller if wanted."""
    image = decode_image(data, left.pixels)
    left.pixels -= image.width * image.height
    smaller = reduced_image(image) if reference.reduced else None
    if smaller is not None:
        return MediaItem(media_type="image/png", data=smaller)
    return MediaItem(media_type=_media_type(data), data=data)


def _check_audio(data: bytes, reference: MediaReference, left: _Left) -> MediaItem:
    """Decode audio to check it, and return it."""
    left.seconds -= len(decode_audio(data, left.seconds)) / SAMPLE_RATE
    kind = reference.url[5:].partition(";")[0]
    return MediaItem(modality="audio", media_type=kind, data=data)


_CHECKS: Mapping[Modality, Callable[[bytes, MediaReference, _Left], MediaItem]] = MappingProxyType(
    {"audio": _check_audio, "image": _check_image}
)
_CODES: Mapping[Modality, tuple[str, str]] = MappingProxyType(
    {
        "audio": ("audio_file_too_large", "invalid_base64_audio"),
        "image": ("image_file_too_large", "invalid_base64_image"),
    }
)
"""The codes for too many bytes and for what is no base64; those of images are OpenAI's."""


def _media_type(data: bytes) -> str:
    """Return the media type of a file that has been decoded, by its first bytes."""
    for start, kind in ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif")):
        if data.startswith(start):
            return f"image/{kind}"
    return "image/webp"
