"""Keep the transcripts of the reference on disk, so that each process of a test run does not record them again."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["cached"]

_HERE = Path(__file__).resolve().parent
_JUDGE = _HERE.parents[2] / "conformance" / "plumbline_conformance"
_FOLDER = _HERE.parents[2] / ".pytest_cache" / "transcripts"


def cached(make: Callable[[], list[Transcript]]) -> list[Transcript]:
    """Return what `make` returned earlier, if nothing that determines a transcript has changed since.

    Only transcripts that pass every check are kept: another one may be due to the load of the machine.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    path = _FOLDER / f"{_digest()}.msgpack"
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # The other processes wait for the one that records.
        if path.is_file():
            return msgspec.msgpack.decode(path.read_bytes(), type=list[Transcript])
        found = make()
        if all(finding.verdict == "pass" for seen in found for finding in judge(seen)):
            for old in _FOLDER.glob("*.msgpack"):
                old.unlink()
            path.write_bytes(msgspec.msgpack.encode(found))
        return found


def _digest() -> str:
    """Hash the judge with its contract, the example servers, and the releases of Python and all libraries."""
    libraries = sorted(f"{one.name} {one.version}" for one in importlib.metadata.distributions())
    found = hashlib.sha256("\n".join([sys.version, *libraries]).encode())
    for folder in (_JUDGE, _HERE):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                found.update(f"\n{path.relative_to(folder)} {len(content)}\n".encode())
                found.update(content)
    return found.hexdigest()
