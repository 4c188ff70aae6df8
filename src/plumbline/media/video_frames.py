"""Decode the frames of a video with PyAV, in the process that calls: a worker with bounds on its time and memory."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

__all__ = ["VideoError", "VideoFrames", "decode_frames"]

_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4")
_MAX_PIXELS = 4096 * 2304
"""Pixels of a frame of a file."""
_FRAME_PIXELS = 1_000_000
"""Pixels of a frame that is returned; models scale frames to 0.6 million or fewer."""
_MAX_RATIO = 200


class VideoError(ValueError):
    """The file cannot be decoded as a video; the text follows "The video of 'field'"."""

    code = "invalid_value"


class VideoFrames(NamedTuple):
    """Frames of a video as they are in the file: not turned."""

    width: int
    height: int
    turns: int
    """Right angles by which the frames are to be turned counterclockwise."""
    indexes: list[int]
    total: int
    rate: float
    frames: list[bytes]
    """RGB, [height, width, 3] each."""


def decode_frames(data: bytes, max_frames: int, max_pixels: int) -> VideoFrames:
    """Return at most `max_frames` frames of a file; see `plumbline.media.video.decode_video`.

    Raises:
        VideoError: the file has another format, or is too large or broken.
        MemoryError: it needs more memory than the process may have.
    """
    try:
        return _decoded(data, max_frames, max_pixels)
    except (VideoError, MemoryError):
        raise
    except Exception as error:  # FFmpeg's errors are of many kinds.
        raise VideoError(f"cannot be decoded: {str(error)[:200]}") from None


def _decoded(data: bytes, max_frames: int, max_pixels: int) -> VideoFrames:
    total = sum(packet.size > 0 for packet in _opened(data)[0].demux(video=0))
    if not total:
        raise VideoError("has no frames")
    container, stream = _opened(data)
    width, height = _size(stream.width, stream.height)
    count = min(max_frames, total)
    if count * width * height > max_pixels:
        raise VideoError(
            f"has {count} frames of {width} x {height} pixels; "
            f"the images and videos of a request may have {max_pixels} more"
        )
    wanted = {round(place * (total - 1) / max(count - 1, 1)) for place in range(count)}
    indexes: list[int] = []
    frames: list[bytes] = []
    for index, frame in enumerate(container.decode(stream)):
        if index in wanted:
            if (frame.width, frame.height) != (stream.width, stream.height):
                raise VideoError("changes its size")
            indexes.append(index)
            frames.append(_rgb(frame, width, height))
            turns = _turns(frame)
        if index >= max(wanted):
            break
    if not frames:
        raise VideoError("has no frame that can be decoded")
    rate = float(stream.average_rate or 0)
    return VideoFrames(width, height, turns, indexes, total, rate, frames)


def _opened(data: bytes) -> tuple[Any, Any]:
    """Return a container and its video stream, which is decoded in one thread."""
    import av

    if data[4:8] in (b"ftyp", b"moov", b"wide", b"mdat", b"free", b"skip"):
        kind = "mov"
    elif data[:4] == b"\x1a\x45\xdf\xa3":
        kind = "matroska"
    else:
        raise VideoError("is not a video in a supported format: MP4, QuickTime, WebM or Matroska")
    # With a format given, FFmpeg tries no other, such as playlists, which name further files.
    container = av.open(io.BytesIO(data), format=kind, metadata_errors="ignore")
    if not container.streams.video:
        raise VideoError("has no video track")
    stream = container.streams.video[0]
    name = stream.codec_context.codec.canonical_name
    if name not in _CODECS:
        raise VideoError(f"is encoded as {name}; this server decodes {', '.join(_CODECS)}")
    stream.codec_context.thread_count = 1
    return container, stream


def _size(width: int, height: int) -> tuple[int, int]:
    """Return the size of returned frames."""
    if not width or not height or width * height > _MAX_PIXELS:
        raise VideoError(f"has {width} x {height} pixels; this server decodes at most {_MAX_PIXELS}")
    if max(width, height) > _MAX_RATIO * min(width, height):
        raise VideoError(
            f"has {width} x {height} pixels; a side may be {_MAX_RATIO} times as long as the other"
        )
    scale = min(1.0, (_FRAME_PIXELS / (width * height)) ** 0.5)
    return max(1, int(width * scale)), max(1, int(height * scale))


def _rgb(frame: Any, width: int, height: int) -> bytes:
    """Return a frame as RGB bytes without padding."""
    plane = frame.reformat(width=width, height=height, format="rgb24").planes[0]
    data = bytes(plane)
    if plane.line_size == 3 * width:
        return data[: 3 * width * height]
    starts = range(0, plane.line_size * height, plane.line_size)
    return b"".join(data[start : start + 3 * width] for start in starts)


def _turns(frame: Any) -> int:
    """Return by how many right angles a frame is to be turned counterclockwise, as a camera has written."""
    return round(getattr(frame, "rotation", 0) / 90) % 4
