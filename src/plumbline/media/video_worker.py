"""Decode one video from standard input; `media.video` runs this module as a process, which ends with the video.

It writes a line of JSON, with the shape of the frames or with an error, and then the frames as RGB bytes.
"""

from __future__ import annotations

import json
import resource
import sys

from plumbline.media.video_frames import VideoError, decode_frames

_MEMORY = 2 * 1024**3
"""Bytes of the process's addresses. Tables of a file can claim any number of frames in a few bytes."""


def main(max_frames: int, max_pixels: int, cpu_seconds: float) -> None:
    """Decode a video with bounds on memory and time."""
    whole = max(1, round(cpu_seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    frames: list[bytes] = []
    try:
        *shape, frames = decode_frames(sys.stdin.buffer.read(), max_frames, max_pixels)
        found = dict(zip(("width", "height", "turns", "indexes", "total", "rate"), shape, strict=True))
    except VideoError as refusal:
        found = {"error": str(refusal)}
    except MemoryError:
        found = {"error": "needs too much memory to decode"}
    sys.stdout.buffer.write(json.dumps(found).encode() + b"\n")
    for frame in frames:
        sys.stdout.buffer.write(frame)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
