"""Load the files that requests name, with bounds on their number, bytes, pixels and time."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Sequence
from importlib.util import find_spec

from plumbline.engines.images import ImageError, decode_image, reduced_image
from plumbline.engines.port import MediaItem
from plumbline.server.fetch import Fetcher, FetchError
from plumbline.server.settings import Settings
from plumbline.server.streams import close_with_request
from plumbline.turn import ChatPrompt, MediaReference, Prompt, media_of, with_media
from plumbline.wire.errors import ApiError, invalid_request, rate_limited

__all__ = ["MediaLoader"]

_MAX_DECODERS = 2
"""Images that are decoded at a time; one of 40 million pixels takes 120 MB."""


class MediaLoader:
    """Load images from data URLs, and from http(s) URLs if the operator allows it.

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
            ApiError: 400 for a file that is too large, cannot be fetched or is no image; 429 if the files of other
                requests need too much memory.
        """
        references = [
            part for prompt in prompts for part in media_of(prompt) if isinstance(part, MediaReference)
        ]
        if not references:
            return list(prompts)
        if find_spec("PIL") is None:
            raise invalid_request(
                "This server cannot decode images: Pillow is not installed (plumbline[images]).",
                references[0].field,
            )
        most = self._settings.max_media_items
        if len(references) > most:
            raise invalid_request(
                f"The request has {len(references)} images; this server takes {most} at most.",
                references[most].field,
                "invalid_value",
            )
        loaded = await self._load(references)
        return [
            with_media(prompt, loaded) if isinstance(prompt, ChatPrompt) else prompt for prompt in prompts
        ]

    async def _load(self, references: Sequence[MediaReference]) -> dict[MediaReference, MediaItem]:
        loaded: dict[MediaReference, MediaItem] = {}
        left, pixels = self._settings.max_media_bytes, self._settings.max_image_pixels
        for reference in references:
            if reference in loaded:
                continue
            data = await self._bytes(reference, left)
            left -= len(data)
            async with self._decoders:
                try:
                    loaded[reference], seen = await asyncio.to_thread(
                        _checked, data, reference.reduced, pixels
                    )
                except ImageError as error:
                    raise _refused(reference, str(error), error.code) from error
            pixels -= seen
        self._reserve(sum(len(item.data) for item in loaded.values()))
        return loaded

    def _reserve(self, size: int) -> None:
        """Count the bytes until the current request is over."""
        if self._in_flight + size > self._settings.max_media_in_flight:
            raise rate_limited("The images of other requests need all memory for images; try again later.")
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
    return invalid_request(f"The image of '{reference.field}' {why}.", reference.field, code)


def _from_data_url(reference: MediaReference, most: int) -> bytes:
    """Return the file of a data URL."""
    head, comma, text = reference.url.partition(",")
    kind, *options = head[5:].lower().split(";")
    if not comma or "base64" not in options:
        raise _refused(reference, "is no data URL with base64, data:image/png;base64,…", "invalid_image_url")
    if kind and not kind.startswith("image/"):
        raise _refused(reference, f"has the media type {kind[:100]!r}", "unsupported_image_media_type")
    if len(text) * 3 // 4 > most + 2:
        raise _refused(reference, f"has more bytes than the {most} that are left", "image_file_too_large")
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (ValueError, UnicodeError):
        raise _refused(reference, "is no valid base64", "invalid_base64_image") from None


def _checked(data: bytes, reduced: bool, max_pixels: int) -> tuple[MediaItem, int]:
    """Decode an image to check it; returns it, made smaller if wanted, and its number of pixels."""
    image = decode_image(data, max_pixels)
    pixels: int = image.width * image.height
    smaller = reduced_image(image) if reduced else None
    if smaller is not None:
        return MediaItem(media_type="image/png", data=smaller), pixels
    return MediaItem(media_type=_media_type(data), data=data), pixels


def _media_type(data: bytes) -> str:
    """Return the media type of a file that has been decoded, by its first bytes."""
    for start, kind in ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif")):
        if data.startswith(start):
            return f"image/{kind}"
    return "image/webp"
