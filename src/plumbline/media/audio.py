"""Decode audio files with libsndfile."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # A server that gets no files needs neither NumPy nor the decoders.
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SAMPLE_RATE", "AudioError", "decode_audio"]

SAMPLE_RATE = 16_000
"""Samples per second that nearly all models of audio read."""
_FORMATS = ("WAV", "WAVEX", "RF64", "MP3")
_MAX_RATE = 192_000
_MAX_CHANNELS = 8
_BLOCK = 65_536
"""Samples of each channel that are decoded at a time."""


class AudioError(ValueError):
    """The file cannot be decoded as audio."""

    code = "invalid_value"


def decode_audio(data: bytes, max_seconds: float) -> NDArray[np.float32]:
    """Return a file as samples [length] in [-1, 1], the mean of its channels, at 16,000 a second.

    Args:
        data: a WAV or MP3 file.
        max_seconds: longer audio is refused as soon as its length is known, whatever its header claims.

    Raises:
        AudioError: the file has another format, or is too long, empty or broken.
    """
    import numpy as np
    import soundfile
    import soxr

    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except soundfile.SoundFileError:
        raise AudioError("is not audio in a supported format: WAV or MP3") from None
    with file:
        if file.format not in _FORMATS:
            raise AudioError(f"is in the format {file.format}; this server reads WAV and MP3")
        rate, channels = file.samplerate, file.channels
        if not 1 <= rate <= _MAX_RATE or channels > _MAX_CHANNELS:
            raise AudioError(
                f"has {channels} channels of {rate} samples a second; "
                f"this server reads at most {_MAX_CHANNELS} of {_MAX_RATE}"
            )
        samples = _mean_of_channels(file, int(max_seconds * rate))
    if not len(samples):
        raise AudioError("has no samples")
    if not np.isfinite(samples).all():
        raise AudioError("has samples that are not finite numbers")
    resampled: NDArray[np.float32] = soxr.resample(samples, rate, SAMPLE_RATE)
    return np.clip(resampled, -1.0, 1.0)


def _mean_of_channels(file: object, most: int) -> NDArray[np.float32]:
    """Decode a file block by block, so that one which is longer than `most` samples costs no more than that."""
    import numpy as np
    import soundfile

    assert isinstance(file, soundfile.SoundFile)
    blocks: list[NDArray[np.float32]] = []
    length = 0
    while True:
        try:
            block = file.read(_BLOCK, dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise AudioError(f"cannot be decoded: {error}") from None
        if not len(block):
            return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
        length += len(block)
        if length > most:
            raise AudioError(f"is longer than the {most / file.samplerate:.6g} seconds that are left")
        blocks.append(block.mean(axis=1, dtype=np.float32))
