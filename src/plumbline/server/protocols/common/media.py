"""Read the parts of messages that are not text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from plumbline.answer.turn import MediaReference, Part
from plumbline.contract.wire.errors import ApiError, invalid_value, unsupported_value
from plumbline.server.protocols.common.fields import tag_of

__all__ = ["audio_reference", "image_reference", "joined_text", "unread_part", "video_reference"]

_SCHEMES = ("data", "http", "https")
_NAMES: Mapping[str, str] = MappingProxyType({"audio": "audio", "image": "images", "video": "videos"})


def image_reference(url: str, detail: str | None, field: str) -> MediaReference:
    """Return a reference to an image.

    Args:
        url: its URL.
        detail: how finely the model should look at it. Only `low` changes something: the image is made smaller.
        field: the field that has the URL.

    Raises:
        ApiError: 400 for a URL of another scheme.
    """
    _check_scheme(url, field)
    return MediaReference(url=url, reduced=detail == "low", field=field)


def video_reference(url: str, field: str) -> MediaReference:
    """Return a reference to a video.

    Args:
        url: its URL.
        field: the field that has the URL.

    Raises:
        ApiError: 400 for a URL of another scheme.
    """
    _check_scheme(url, field)
    return MediaReference(modality="video", url=url, field=field)


def _check_scheme(url: str, field: str) -> None:
    scheme = url[:10].partition(":")[0].lower()
    if ":" not in url[:10] or scheme not in _SCHEMES:
        raise invalid_value(field, url[:100], ["data:…", "http://…", "https://…"])


def audio_reference(data: str, kind: str, field: str) -> MediaReference:
    """Return a reference to audio that a request contains.

    Args:
        data: the file in base64.
        kind: `wav` or `mp3`.
        field: the field that has the data.
    """
    return MediaReference(modality="audio", url=f"data:audio/{kind};base64,{data}", field=field)


def joined_text(parts: Iterable[Part]) -> str:
    """Return the text parts as one text, each on a line of its own, as vLLM and llama.cpp join them.

    >>> joined_text(["What is this?", "Be brief."])
    'What is this?\\nBe brief.'
    """
    return "\n".join(part for part in parts if isinstance(part, str))


def unread_part(part: Any, field: str, modalities: Collection[str]) -> ApiError:
    """Return the 400 for a part that the model does not read (CHAT-18)."""
    reads = ", ".join(("text", *(_NAMES[name] for name in sorted(modalities))))
    return unsupported_value(
        f"{field}.type", tag_of(part), f"is not supported: this model reads {reads} only"
    )
