"""Download large files into the cache of huggingface_hub, and go on where an earlier download stopped.

The library itself begins each file anew since its release 1.18 (https://github.com/huggingface/huggingface_hub/issues/4196):
whoever interrupts a download of 20 GB loses it. Its cache keeps a file under its hash, so a file that is put there is
found by it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

__all__ = ["HubError", "HubFile", "check_bytes", "fetch", "partial_size", "repository_folder", "unfinished"]

_PIECE = 1 << 20
"""Bytes that are hashed at a time."""
_AT_ONCE = 0.2
"""Seconds to wait for another download of the same file before the user is told."""


class HubError(FileNotFoundError):
    """A model cannot be had from the hub; the message says why, and what to do."""


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository."""

    path: str
    size: int
    """Bytes."""
    sha256: str
    """Its hash in hex digits; empty for a small file, of which the hub publishes none."""


def repository_folder(repository: str) -> Path:
    """Return the folder of a repository in the cache, which need not exist."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repository, repo_type="model"))


def partial_size(repository: str, file: HubFile) -> int:
    """Return how many bytes of a large file an interrupted download has left."""
    try:
        return _partial(repository, file).stat().st_size
    except OSError:
        return 0


def unfinished() -> dict[str, int]:
    """Return the bytes of interrupted downloads by repository: the files of the cache that belong to no model yet."""
    from huggingface_hub import constants

    found = {}
    for folder in Path(constants.HF_HUB_CACHE).glob("models--*"):
        whole = {path.resolve() for path in folder.glob("snapshots/**/*") if path.is_file()}
        sizes = [path.stat().st_size for path in folder.glob("blobs/*") if path.resolve() not in whole]
        if sizes:
            found["/".join(folder.name.split("--")[1:])] = sum(sizes)
    return found


def fetch(repository: str, commit: str, file: HubFile) -> bool:
    """Download a large file into the cache, or what is missing of it, and check its hash.

    Returns:
        Whether the file was fetched: small files and those too large for HTTP are left to the library.

    Raises:
        HubError: the file has other bytes than the hub says.
        Exception: what the library raises for a failed download; the partial file stays.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if not file.sha256 or file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        return False
    partial = _partial(repository, file)
    blob = partial.with_name(file.sha256)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with _alone(Path(constants.HF_HUB_CACHE, ".locks", partial.parents[1].name), file):
        if blob.exists():
            return True
        with partial.open("ab") as opened:
            if opened.tell() > file.size:  # Something else wrote it.
                opened.seek(0)
                opened.truncate()
            http_get(
                hf_hub_url(repository, file.path, revision=commit),
                opened,
                resume_size=opened.tell(),
                headers=build_hf_headers(),
                expected_size=file.size,
                displayed_filename=file.path,
            )
        check_bytes(partial, file)
        partial.replace(blob)
    return True


def check_bytes(path: Path, file: HubFile) -> None:
    """Remove a file with other bytes than the hub says, and name it."""
    if not file.sha256:
        return
    found = hashlib.sha256()
    with path.open("rb") as opened:
        while piece := opened.read(_PIECE):
            found.update(piece)
    if found.hexdigest() != file.sha256:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise HubError(
            f"{file.path} has arrived with other bytes than the hub says, and was removed: pull again"
        )


def _partial(repository: str, file: HubFile) -> Path:
    return repository_folder(repository) / "blobs" / f"{file.sha256}.incomplete"


@contextmanager
def _alone(locks: Path, file: HubFile) -> Iterator[None]:
    """Let one program at a time download a file. The lock is the library's, so its other users wait as well."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    locks.mkdir(parents=True, exist_ok=True)
    lock = locks / f"{file.sha256}.lock"
    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=_AT_ONCE))
        except TimeoutError:
            print(f"Another program downloads {file.path}; waiting for it.", file=sys.stderr)
            stack.enter_context(WeakFileLock(lock))
        yield
