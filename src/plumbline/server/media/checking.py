"""Decode files to check them, in a worker: decoders are native code, and what they free stays with their process.

`load.py` sends a question and the bytes of a file, and gets what the file uses of the request's bounds.
"""

from __future__ import annotations

import contextlib
from typing import Literal

import msgspec

from plumbline.base.workers.process import Handler
from plumbline.media.audio import SAMPLE_RATE, AudioError, decode_audio
from plumbline.media.images import ImageError, decode_image, reduced_image
from plumbline.media.video import VideoError
from plumbline.media.video_frames import decode_frames

__all__ = ["CheckedFile", "FileQuestion", "RefusedFile", "handler"]


class FileQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A file, and what it may use."""

    kind: Literal["audio", "image", "video"]
    data: bytes
    pixels: int
    """Of images and of the frames of videos."""
    seconds: float
    """Of audio."""
    frames: int
    """Of a video."""
    reduced: bool
    """Whether an image is wanted with at most 512 pixels on its longest side."""


class CheckedFile(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What a file uses."""

    pixels: int = 0
    seconds: float = 0.0
    media_type: str = ""
    """Of an image."""
    smaller: bytes | None = None
    """The reduced image, if it is wanted and the image is larger."""


class RefusedFile(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Why a file cannot be used; the text follows "The image of 'field'"."""

    why: str
    code: str


def handler(_: bytes) -> Handler:
    """Return what a worker runs. Images are the commonest files, so their decoders are there before a worker forks."""
    with contextlib.suppress(ImportError):
        from PIL import Image, ImageOps  # noqa: F401

        Image.init()
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(FileQuestion)

    def handle(payload: bytes) -> bytes:
        try:
            return encoder.encode(_checked(decoder.decode(payload)))
        except (AudioError, ImageError, VideoError) as error:
            return encoder.encode(RefusedFile(str(error), error.code))

    return handle


def _checked(question: FileQuestion) -> CheckedFile:
    match question.kind:
        case "image":
            image = decode_image(question.data, question.pixels)
            smaller = reduced_image(image) if question.reduced else None
            return CheckedFile(image.width * image.height, 0.0, _media_type(question.data), smaller)
        case "audio":
            return CheckedFile(0, len(decode_audio(question.data, question.seconds)) / SAMPLE_RATE)
        case "video":
            video = decode_frames(question.data, question.frames, question.pixels)
            return CheckedFile(sum(map(len, video.frames)) // 3)


def _media_type(data: bytes) -> str:
    """Return the media type of a file that has been decoded, by its first bytes."""
    for start, kind in ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif")):
        if data.startswith(start):
            return f"image/{kind}"
    return "image/webp"
