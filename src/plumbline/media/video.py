"""Decode video files with PyAV, in a separate process with bounds on memory and time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from plumbline.media.video_frames import VideoError

if TYPE_CHECKING:  # A server that gets no videos does not need it.
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Video", "VideoError", "decode_bounded_video", "decode_video"]

_MOST_CPU_SECONDS = 60.0
_MOST_PIXELS = 1 << 40
_WAIT = 4
"""Seconds on the clock for each second of a CPU, on a loaded machine."""


class Video(NamedTuple):
    """Frames of a video, evenly spread."""

    frames: NDArray[np.uint8]
    """RGB [frames, height, width, 3], upright."""
    indexes: tuple[int, ...]
    """Their places among all frames of the file."""
    total: int
    """Frames of the file."""
    rate: float
    """Frames per second of the file; 0 if the file does not state it."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The facts that model processors need about a video, as the fields of transformers' `VideoMetadata`."""
        return {
            "total_num_frames": self.total,
            "fps": self.rate or None,
            "duration": self.total / self.rate if self.rate else None,
            "frames_indices": list(self.indexes),
            "video_backend": "pyav",
        }


def decode_video(data: bytes, max_frames: int, max_pixels: int, cpu_seconds: float) -> Video:
    """Return at most `max_frames` frames of a file, the first and the last one among them.

    Frames with more than a million pixels are made smaller: models scale them further. Memory of the decoding process
    is bounded too, so no index of a file can fill the machine.

    Args:
        data: an MP4, QuickTime, WebM or Matroska file with H.264, H.265, VP8, VP9, AV1 or MPEG-4 Visual.
        max_frames: at least 1.
        max_pixels: of all returned frames together.
        cpu_seconds: the time of a CPU that decoding may take.

    Raises:
        VideoError: the file has another format, is too large, or takes too long to decode.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "plumbline.media.video_worker",
        str(max_frames),
        str(max_pixels),
        str(cpu_seconds),
    ]
    late = VideoError(f"takes more than {cpu_seconds:g} seconds of a CPU to decode")
    try:
        # No other variable reaches FFmpeg and Python, so they run with their defaults.
        done = subprocess.run(
            command,
            input=data,
            capture_output=True,
            timeout=_WAIT * cpu_seconds + _WAIT,
            env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise late from None
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise late
    head, _, pixels = done.stdout.partition(b"\n")
    if done.returncode or not head:
        raise VideoError("cannot be decoded: the decoder broke off")
    import numpy as np

    found = json.loads(head)
    if "error" in found:
        raise VideoError(found["error"])
    shape = (len(found["indexes"]), found["height"], found["width"], 3)
    frames = np.rot90(np.frombuffer(pixels, np.uint8).reshape(shape), found["turns"], axes=(1, 2))
    return Video(np.ascontiguousarray(frames), tuple(found["indexes"]), found["total"], found["rate"])


def decode_bounded_video(data: bytes, max_frames: int) -> Video:
    """Return at most `max_frames` frames of a file that was decoded before, with bounds of pixels and of time.

    Raises:
        VideoError: the file cannot be decoded.
    """
    return decode_video(data, max_frames, _MOST_PIXELS, _MOST_CPU_SECONDS)
