"""Write and read recordings: every byte of every exchange with its time, so that a run can be judged again offline.

A recording has one JSON value per line: a header, one line per transcript, written as soon as its scenario has ended,
and a footer with a digest of all lines before it. A recording without a footer is refused, because half a run must
never pass for a whole one. A file name that ends with `.gz` means gzip; the digest is of the uncompressed lines.
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

from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.recording.redaction import fingerprint, redacted, redacted_url
from plumbline_conformance.recording.unnamed import name_exchanges
from plumbline_conformance.suite.aliases import current
from plumbline_conformance.suite.contract import suite
from plumbline_conformance.suite.scenario import SEED, Target
from plumbline_conformance.transcript.defects import traceback_of
from plumbline_conformance.transcript.exchange import Transcript

__all__ = [
    "FORMAT",
    "RESTART_WAIT",
    "TIMEOUT",
    "TRIALS",
    "Options",
    "Recorder",
    "Recording",
    "RecordingHeader",
    "UnreadableRecording",
    "read_recording",
]

TRIALS = 3
TIMEOUT = 60.0
RESTART_WAIT = 5.0
"""Defaults of `plumbline check`: further attempts, seconds for one exchange, seconds to wait for a dead server."""
FORMAT = 1
"""Grows when an older reader would misunderstand a newer file; added fields do not count."""


class UnreadableRecording(UnusableInput):
    """The file is not a recording, is truncated, was changed, or has a later format."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run that can change its verdicts."""

    trials: int
    """Further attempts allowed for a scenario."""
    concurrency: int
    """How many scenarios ran at a time."""
    timeout: float
    """Seconds for one exchange."""
    max_tokens_total: int | None = None
    max_tokens_each: int | None = None
    max_seconds: float | None = None
    capabilities: list[str] = msgspec.field(default_factory=list)
    """Capabilities that the user declared as present, or with a minus in front as missing; they were not probed."""
    profile: str = "full"
    """The profile that the server was judged for."""
    limit: str = "max_tokens"
    """The name of the token limit in chat completions."""
    seed: int = SEED
    """The seed of requests that send one."""


class RecordingHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The server, the time and the options of a run."""

    base_url: str
    model: str
    key: str | None = None
    """The fingerprint of the API key."""
    server: str = ""
    """The server's name and version, as given by `--server`."""
    started: str
    """ISO 8601, UTC."""
    chosen: list[str] = msgspec.field(default_factory=list)
    """Ids of the chosen checks; empty for all."""
    by: str = "check"
    """The command that recorded: `check` sends requests, `watch` only listens, and they are judged differently."""
    options: Options | None = None
    """None for `watch`, and in old recordings."""
    suite: dict[str, str] = msgspec.field(default_factory=suite)
    """The version of the contract, and digests of the contract and the rules."""
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
    ) -> RecordingHeader:
        """Return the header of a run that starts now."""
        return RecordingHeader(
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
    """The content of a recording."""

    header: RecordingHeader
    transcripts: list[Transcript]


class Recorder:
    """Write a recording. As a context manager, it writes the footer at the end unless an error occurred."""

    def __init__(self, path: Path, header: RecordingHeader, *, secrets: Sequence[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self._digest = hashlib.sha256()
        self._count = 0
        # Prompts and answers may be private: only the owner can read the file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._raw = os.fdopen(os.open(path, flags, 0o600), "wb")
        # The gzip header has no name and time, so equal recordings are equal files.
        self._file: BinaryIO = _compressed(self._raw) if path.suffix == ".gz" else self._raw
        self._write({"kind": "header", **msgspec.to_builtins(header)})

    def add(self, transcript: Transcript) -> None:
        """Write one transcript, without its credentials; if that fails, write the defect in its place."""
        try:
            kept = msgspec.to_builtins(redacted(transcript, self._secrets))
        except Exception as error:
            lost = Transcript(scenario=transcript.scenario, exchanges=[], defect=traceback_of(error))
            kept = msgspec.to_builtins(redacted(lost, self._secrets))
        self._count += 1
        self._write({"kind": "transcript", **kept})

    def _write(self, value: dict[str, Any]) -> None:
        # Non-ASCII is escaped, because lone surrogates cannot be written as UTF-8.
        line = json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
        self._digest.update(line)
        self._file.write(line)
        if self._file is self._raw:
            self._file.flush()  # Flushing a compressor at every line would lose most of the compression.

    def __enter__(self) -> Recorder:
        return self

    def abandon(self) -> None:
        """Close the file without a footer, so that it counts as truncated."""
        for file in (self._file, self._raw):
            with suppress(OSError):
                file.close()

    def finish(self) -> None:
        """Write the footer and close the file."""
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
        UnreadableRecording: the file is not a recording, is truncated, was changed, or has a later format.
        OSError: the file cannot be read.
    """
    lines = _content(path).splitlines(keepends=True)
    try:
        values = [json.loads(line) for line in lines]
        kinds = [value["kind"] for value in values]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UnreadableRecording(
            f"{path.name} is not a recording, which has a JSON object per line: {error}"
        ) from error
    if kinds[:1] != ["header"]:
        raise UnreadableRecording(f"{path.name} is not a recording: it does not begin with a header")
    if values[0].get("format") != FORMAT:
        raise UnreadableRecording(
            f"{path.name} has format {values[0].get('format')!r}; this version reads {FORMAT}"
        )
    if kinds[-1] != "footer" or "footer" in kinds[:-1]:
        raise UnreadableRecording(f"{path.name} has no footer: the run did not end, record it again")
    digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    if values[-1].get("digest") != digest or values[-1].get("transcripts") != len(values) - 2:
        raise UnreadableRecording(f"{path.name} was changed after it was recorded: its digest differs")
    try:
        header = _of_today(msgspec.convert(values[0], RecordingHeader))
        transcripts = [msgspec.convert(value, Transcript) for value in values[1:-1]]
    except msgspec.ValidationError as error:
        raise UnreadableRecording(f"{path.name}: {error}") from error
    for seen in transcripts:
        name_exchanges(seen, _target_of(header))
    return Recording(header=header, transcripts=transcripts)


def _target_of(header: RecordingHeader) -> Target:
    options = header.options
    limit = options.limit if options is not None else ""
    return Target(
        base_url=header.base_url,
        model=header.model,
        limit="max_completion_tokens" if limit == "max_completion_tokens" else "max_tokens",
        seed=SEED if options is None else options.seed,
    )


def _of_today(header: RecordingHeader) -> RecordingHeader:
    """Replace former ids of checks by the current ones."""
    return msgspec.structs.replace(header, chosen=[current(name) for name in header.chosen])


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableRecording(f"{path.name} cannot be decompressed: {error}") from error
