"""A run in a file: every byte of every exchange with the time it came, so that it can be judged again offline.

One JSON value a line. The first is the header, the last the footer with a digest of everything before it; between them
is one line for each transcript, written as soon as its scenario has ended. A recording without a footer is cut and is
refused: half a run must never pass for a whole one. A file whose name ends with `.gz` is compressed; the digest is of
what is inside.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from plumbline_conformance.recording.redaction import fingerprint, redacted, redacted_url
from plumbline_conformance.suite.aliases import current
from plumbline_conformance.suite.contract import suite
from plumbline_conformance.suite.model import SEED
from plumbline_conformance.transcript.model import Transcript

__all__ = [
    "FORMAT",
    "TIMEOUT",
    "TRIALS",
    "Header",
    "Options",
    "Recorder",
    "Recording",
    "UnreadableRecording",
    "read_recording",
]

TRIALS = 3
TIMEOUT = 60.0
"""What `check` does where nobody says otherwise."""
FORMAT = 1
"""Grows when an older reader would misunderstand a newer file. Fields may be added without that."""


class UnreadableRecording(Exception):  # noqa: N818 - it says what the file is
    """The file is no recording, is cut, was changed, or is of a later format."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the verdicts of a run depend on beside the server: other options could bring other ones."""

    trials: int
    """How many further attempts a scenario could have."""
    concurrency: int
    """How many scenarios were asked side by side."""
    timeout: float
    """Seconds for one exchange."""
    max_tokens_total: int | None = None
    max_tokens_each: int | None = None
    max_seconds: float | None = None
    capabilities: list[str] = msgspec.field(default_factory=list)
    """What the target was said to have, or with a minus in front not to have, so that it was not looked for."""
    profile: str = "full"
    """What the server was to be fit for."""
    limit: str = "max_tokens"
    """The name under which chat completions were given the limit of their tokens."""
    seed: int = SEED
    """What requests said that sent a seed."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of whom, and when."""

    base_url: str
    model: str
    key: str | None = None
    """The fingerprint of the API key."""
    server: str = ""
    """What it is, in the words of whoever recorded: a name and a version."""
    started: str
    """ISO 8601, UTC."""
    chosen: list[str] = msgspec.field(default_factory=list)
    """Ids of the checks that were looked at; empty for all that there were."""
    by: str = "check"
    """The command that recorded: `check` asked, `watch` only listened, and the two are judged differently."""
    options: Options | None = None
    """How it asked; None of what only listened, and of recordings that did not say it yet."""
    suite: dict[str, str] = msgspec.field(default_factory=suite)
    """Versions and digests of the contract and the suite that asked."""
    format: int = FORMAT

    @staticmethod
    def of(
        base_url: str,
        model: str,
        api_key: str | None = None,
        chosen: Sequence[str] = (),
        *,
        by: str = "check",
        server: str = "",
        options: Options | None = None,
    ) -> Header:
        """The header of a run that starts now."""
        return Header(
            base_url=redacted_url(base_url),
            model=model,
            key=None if api_key is None else fingerprint(api_key),
            server=server,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            chosen=list(chosen),
            by=by,
            options=options,
        )


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A recording that was read."""

    header: Header
    transcripts: list[Transcript]


class Recorder:
    """Writes a recording; a context manager, whose end without an error writes the footer."""

    def __init__(self, path: Path, header: Header, *, secrets: Sequence[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self._digest = hashlib.sha256()
        self._count = 0
        # Prompts and answers are nobody else's business.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._raw = os.fdopen(os.open(path, flags, 0o600), "wb")
        # Without a name and a time inside, equal recordings are equal files.
        self._file: BinaryIO = _compressed(self._raw) if path.suffix == ".gz" else self._raw
        self._write({"kind": "header", **msgspec.to_builtins(header)})

    def add(self, transcript: Transcript) -> None:
        """Write one transcript, without its credentials."""
        self._count += 1
        self._write(
            {"kind": "transcript", **msgspec.to_builtins(redacted(transcript, self._secrets))},
        )

    def _write(self, value: dict[str, Any]) -> None:
        # Everything beyond ASCII is escaped, so that halves of characters are written as well.
        line = json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
        self._digest.update(line)
        self._file.write(line)
        if self._file is self._raw:
            self._file.flush()  # Flushing a compressor at every line would cost most of what it saves.

    def __enter__(self) -> Recorder:
        return self

    def abandon(self) -> None:
        """Close the file as one that was cut."""
        for file in (self._file, self._raw):
            with suppress(OSError):
                file.close()

    def finish(self) -> None:
        """Write the footer, without which the file is one that was cut, and close it."""
        self._write({"kind": "footer", "transcripts": self._count, "digest": self._digest.hexdigest()})
        self._file.close()
        self._raw.close()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()


def _compressed(raw: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Raises:
        UnreadableRecording: it is none, is cut, was changed, or is of a later format.
        OSError: the file cannot be read.
    """
    lines = _content(path).splitlines(keepends=True)
    try:
        values = [json.loads(line) for line in lines]
        kinds = [value["kind"] for value in values]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UnreadableRecording(f"line by line, {path.name} is not JSON with a kind: {error}") from error
    if kinds[:1] != ["header"]:
        raise UnreadableRecording(f"{path.name} does not begin with a header")
    if values[0].get("format") != FORMAT:
        raise UnreadableRecording(
            f"{path.name} has format {values[0].get('format')!r}; this version reads {FORMAT}"
        )
    if kinds[-1] != "footer" or "footer" in kinds[:-1]:
        raise UnreadableRecording(f"{path.name} has no footer: the run was cut")
    digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    if values[-1].get("digest") != digest or values[-1].get("transcripts") != len(values) - 2:
        raise UnreadableRecording(f"{path.name} is not what was written: its digest differs")
    try:
        return Recording(
            header=_of_today(msgspec.convert(values[0], Header)),
            transcripts=[msgspec.convert(value, Transcript) for value in values[1:-1]],
        )
    except msgspec.ValidationError as error:
        raise UnreadableRecording(f"{path.name}: {error}") from error


def _of_today(header: Header) -> Header:
    """The header with the ids that checks have now."""
    return msgspec.structs.replace(header, chosen=[current(name) for name in header.chosen])


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableRecording(f"{path.name} cannot be unpacked: {error}") from error
