"""Make small videos whose frames can be told apart by their colour."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from support.weights.vision import data_url

__all__ = ["noise", "shade", "video", "video_part"]


def shade(index: int, count: int) -> int:
    """Return the red of a frame, from 0 in the first to 255 in the last one."""
    return index * 255 // max(count - 1, 1)


def video(
    count: int = 6,
    *,
    width: int = 64,
    height: int = 48,
    container: str = "mp4",
    codec: str = "libx264",
    rate: int = 10,
    green: int = 0,
) -> bytes:
    """Return the file of a video whose top left quarter is blue as well.

    It is encoded on a thread of its own: as root, SVT-AV1 gives the thread that calls it real-time priority
    (SCHED_FIFO) and leaves it so, and all threads and processes that this one starts later would inherit that.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_encoded, count, width, height, container, codec, rate, green).result()


def _encoded(count: int, width: int, height: int, container: str, codec: str, rate: int, green: int) -> bytes:
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(count):
            pixels = np.zeros((height, width, 3), np.uint8)
            pixels[..., 0], pixels[..., 1] = shade(index, count), green
            pixels[: height // 2, : width // 2, 2] = 200
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(stream.encode())
    return file.getvalue()


def noise(count: int) -> bytes:
    """Return the file of a video with one picture of noise, encoded once, as each of its frames."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream: Any = output.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        stream.options = {"preset": "ultrafast", "crf": "40", "tune": "zerolatency"}
        pixels = np.random.default_rng(1).integers(0, 256, (720, 1280, 3), np.uint8)
        (packet, *_) = stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24"))
        data, base = bytes(packet), packet.time_base
        for index in range(count):
            again = av.Packet(data)
            again.stream, again.time_base = stream, base
            again.pts = again.dts = index * round(1 / (10 * base))
            again.is_keyframe = True
            output.mux(again)
    return file.getvalue()


def video_part(data: bytes, kind: str = "video/mp4") -> dict[str, Any]:
    """The part of a message in chat."""
    return {"type": "video_url", "video_url": {"url": data_url(data, kind)}}
