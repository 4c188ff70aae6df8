"""Ask the hub what a name stands for, download it, check it, and find it in the cache without the network."""

from __future__ import annotations

import errno
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from plumbline.hub.choice import NoModelError, chosen_files, entry_file
from plumbline.hub.names import HubName
from plumbline.hub.transfer import HubError, HubFile, check_bytes, fetch, partial_size
from plumbline_conformance.console.sizes import size_text

__all__ = ["HubError", "HubFile", "Offer", "cached", "download", "offer"]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ADVICE = "check the network, HF_ENDPOINT and HF_TOKEN"


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for on the hub at this moment."""

    name: HubName
    commit: str
    patterns: tuple[str, ...]
    files: tuple[HubFile, ...]
    licence: str
    """Its identifier, such as apache-2.0; "not stated" if the model has none."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def __str__(self) -> str:
        files = f"{len(self.files)} files" if len(self.files) > 1 else self.files[0].path
        return (
            f"{self.name}: {files}, {size_text(self.size)}, licence {self.licence}, commit {self.commit[:12]}"
        )


def cached(name: HubName) -> Path | None:
    """Return the folder or the GGUF file of a model that was downloaded whole; None if it was not. Asks nobody."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    def folder(patterns: list[str]) -> Path:
        revision = name.revision or None
        return Path(
            snapshot_download(
                name.repository, revision=revision, allow_patterns=patterns, local_files_only=True
            )
        )

    try:
        root = folder(["."])  # No file is demanded.
        patterns = chosen_files((path.relative_to(root).as_posix() for path in root.rglob("*")), name.part)
        return folder(patterns) / entry_file(patterns)
    except (LocalEntryNotFoundError, NoModelError):
        return None


def offer(name: HubName) -> Offer:
    """Ask the hub for the files of a model.

    Raises:
        HubError: it cannot be reached, has no such model or revision, or none that can be served.
    """
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(name.repository, revision=name.revision or None, files_metadata=True)
    except Exception as error:  # The library raises errors of many kinds.
        raise HubError(_reason(name, error)) from error
    siblings = [each for each in info.siblings or () if _is_inside(each.rfilename)]
    try:
        patterns = chosen_files((each.rfilename for each in siblings), name.part)
    except NoModelError as error:
        raise HubError(f"{name.repository} cannot be served: {error}") from error
    files = tuple(
        HubFile(
            each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs and _is_hash(each.lfs.sha256) else ""
        )
        for each in siblings
        if any(fnmatch(each.rfilename, pattern) for pattern in patterns)
    )
    licence = getattr(info.card_data, "license", None) or "not stated"
    return Offer(
        name=name, commit=info.sha or "", patterns=tuple(patterns), files=files, licence=str(licence)[:80]
    )


def download(offered: Offer) -> Path:
    """Download a model, or what is missing of it, and return its folder or GGUF file. Each new large file is hashed.

    A download that was interrupted goes on where it stopped. The library shows its progress.

    Raises:
        HubError: the disk is too small, the hub cannot be reached, or a file has other bytes than the hub says.
    """
    from huggingface_hub import constants, snapshot_download

    name = offered.name
    missing = [file for file in offered.files if not _has(offered, file.path)]
    wanted = sum(file.size - partial_size(name.repository, file) for file in missing)
    _check_room(wanted, Path(constants.HF_HUB_CACHE))
    try:
        unchecked = [file for file in missing if not fetch(name.repository, offered.commit, file)]
        folder = Path(
            snapshot_download(
                name.repository, revision=name.revision or None, allow_patterns=list(offered.patterns)
            )
        )
    except HubError:
        raise
    except Exception as error:  # The library raises errors of many kinds.
        raise HubError(_reason(name, error)) from error
    if folder.name != offered.commit:
        return download(offer(name))  # The branch has moved meanwhile.
    for file in unchecked:
        check_bytes(folder / file.path, file)
    return folder / entry_file(list(offered.patterns))


def _has(offered: Offer, path: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(offered.name.repository, path, revision=offered.commit), str)


def _check_room(size: int, cache: Path) -> None:
    place = next(path for path in (cache, *cache.parents) if path.exists())
    if size > (free := shutil.disk_usage(place).free):
        raise HubError(
            f"it needs {size_text(size)} and {place} has {size_text(free)} left: make room, or set HF_HOME to a folder "
            "on another disk"
        )


def _reason(name: HubName, error: Exception) -> str:
    """Say why the hub gives nothing, in one line."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name.repository} is given to those who accept its licence only: accept it at "
            f"https://huggingface.co/{name.repository}, and set HF_TOKEN to a token of yours"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{name.repository} does not exist on the hub, or is private: check the name, or set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name.repository} has no revision {name.revision}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set, which forbids to ask the hub for {name}: unset it"
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return (
            f"{name} could not be stored ({error.strerror}): make room, or set HF_HOME to a folder on another disk; "
            "the next download goes on where this one stopped"
        )
    if isinstance(error, OSError) and error.filename:
        return f"{name} could not be stored in {error.filename} ({error.strerror}): set HF_HOME to another folder"
    first = str(error).strip().partition("\n")[0][:300] or type(error).__name__
    return f"{name} could not be downloaded from the hub ({first}): {_ADVICE}"


def _is_hash(text: str) -> bool:
    """Whether a text is a SHA-256 in hex digits; it becomes the name of a file."""
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _is_inside(path: str) -> bool:
    """Whether a path stays in its folder."""
    return not path.startswith("/") and ".." not in path.split("/")
