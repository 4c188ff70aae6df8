"""Decode image files with Pillow."""

from __future__ import annotations

import io
from typing import Any

__all__ = ["ImageError", "decode_image", "reduced_image", "upright_size"]

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_MAX_SCANS = 64
"""Scans of a progressive JPEG. Each costs a pass over all pixels; encoders write about ten."""
_MAX_RATIO = 200
"""Processors scale the shorter side to some hundred pixels, and the longer one with it."""
_REDUCED = 512
"""The longest side of an image of little detail, in pixels."""
_WEBP_SHARE = 3, 4
"""Of the pixels that others may have: its decoder keeps two canvases, so a pixel takes 16 bytes at once, and not 12."""
_ORIENTATION = 0x0112
"""The EXIF tag."""
_LYING = range(5, 9)
"""Its values that exchange height and width."""
_PNG_ORIENTATIONS = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
"""The chunks of a PNG that may have one."""


class ImageError(ValueError):
    """The file cannot be decoded as an image; `code` is OpenAI's code for the reason."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def decode_image(data: bytes, max_pixels: int | None = None) -> Any:
    """Return a file as a PIL image: the first frame, upright, in RGB, transparent parts in white.

    Args:
        data: a PNG, JPEG, WebP or GIF file.
        max_pixels: a larger image is refused before it is decoded; a WebP file may have three quarters of them.

    Raises:
        ImageError: the file has another format, or is too large or broken.
    """
    from PIL import ImageOps

    image = _opened(data, max_pixels)
    try:
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return _in_rgb(image)
    except MemoryError:
        raise ImageError("needs too much memory to decode", "image_too_large") from None
    except Exception as error:
        raise ImageError(f"cannot be decoded: {error}", "image_parse_error") from None


def upright_size(data: bytes) -> tuple[int, int]:
    """Return the height and the width of what `decode_image` returns, without the pixels where the header has them.

    Raises:
        ImageError: the file has another format, or is too large or broken.
    """
    image = _opened(data, None)
    width, height = image.size
    # Pillow decodes a PNG to look for chunks behind its pixels.
    if image.format == "PNG" and not any(chunk in data for chunk in _PNG_ORIENTATIONS):
        return height, width
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception as error:
        raise ImageError(f"cannot be decoded: {error}", "image_parse_error") from None
    return (width, height) if orientation in _LYING else (height, width)


def reduced_image(image: Any) -> bytes | None:
    """Return an image as a PNG file with at most 512 pixels on its longest side; None if it has no more."""
    if max(image.size) <= _REDUCED:
        return None
    smaller = image.copy()
    smaller.thumbnail((_REDUCED, _REDUCED))
    file = io.BytesIO()
    smaller.save(file, "PNG")
    return file.getvalue()


def _opened(data: bytes, max_pixels: int | None) -> Any:
    """Read the header of a file, and refuse what takes too much to decode."""
    from PIL import Image

    if not data:
        raise ImageError("is empty", "empty_image_file")
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError:
        raise ImageError("has more pixels than Pillow decodes", "image_too_large") from None
    except Exception:  # Pillow raises errors of many kinds for broken files.
        raise ImageError(
            "is not an image in a supported format: PNG, JPEG, WebP or GIF", "invalid_image_format"
        ) from None
    width, height = image.size
    kind = "images"
    if max_pixels is not None and image.format == "WEBP":
        part, whole = _WEBP_SHARE
        max_pixels, kind = max_pixels * part // whole, "WebP images"
    if max_pixels is not None and width * height > max_pixels:
        raise ImageError(
            f"has {width} x {height} pixels; the {kind} of a request may have {max_pixels} together",
            "image_too_large",
        )
    if max(width, height) > _MAX_RATIO * min(width, height):
        raise ImageError(
            f"has {width} x {height} pixels; a side may be {_MAX_RATIO} times as long as the other",
            "image_parse_error",
        )
    if image.format == "JPEG" and data.count(b"\xff\xda") > _MAX_SCANS:
        raise ImageError(f"is a JPEG with more than {_MAX_SCANS} scans", "image_parse_error")
    return image


def _in_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # Sixteen bits of grey, which `convert` would cut to eight.
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        above = image.convert("RGBA")
        white = Image.new("RGB", above.size, (255, 255, 255))
        white.paste(above, mask=above.getchannel("A"))
        return white
    return image.convert("RGB")
