"""Download a model (`plumbline pull`), and remove one (`plumbline rm`)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from plumbline.hub.choice import NoModelError, chosen_files
from plumbline.hub.names import HubName, read_name
from plumbline.hub.repository import HubError, cached, download, offer
from plumbline.hub.transfer import repository_folder
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Describe, OptionError, UnusableInput, shown
from plumbline_conformance.console.sizes import size_text
from plumbline_conformance.console.streams import put

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRevisionInfo
    from rich.console import Console

__all__ = ["PullCommand", "RemoveCommand", "ask", "fetch_missing"]

_INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
_model = partial(Describe, "model")


class PullCommand(Command, frozen=True, kw_only=True):
    """Download a model from the hub, or what is missing or new of it."""

    example = "plumbline pull Qwen/Qwen3-0.6B-GGUF:Q8_0"
    extra = "serve"

    name: Annotated[
        str,
        _model(
            "a name on the hub: OWNER/NAME, with :Q4_K_M or :FILE.gguf for a GGUF file and @REVISION for a branch, tag "
            "or commit; or its address",
            "NAME",
            positional=True,
        ),
    ]

    def run(self, out: Console) -> int:
        """Download it."""
        if Path(self.name).expanduser().exists():
            put(f"{self.name} is on this machine already. Talk to it with `plumbline run {self.name}`.")
            return 0
        name = _named(self.name)
        try:
            offered = offer(name)
            put(f"{offered}")
            put(f"{download(offered)}")
        except HubError as error:
            if (path := cached(name)) is None:
                raise UnusableInput(str(error)) from error
            raise UnusableInput(
                f"{error}. What was downloaded before is here and can be used: {path}"
            ) from error
        except KeyboardInterrupt:
            print("Interrupted: the same command goes on where this one stopped.", file=sys.stderr)
            return _INTERRUPTED
        put(f"Talk to it with `plumbline run {name}`, serve it with `plumbline serve {name}`.")
        return 0


class RemoveCommand(Command, frozen=True, kw_only=True):
    """Remove a downloaded model, all its revisions and quantisations or one GGUF file."""

    example = "plumbline rm Qwen/Qwen3-0.6B-GGUF"
    extra = "serve"

    name: Annotated[str, _model("its name, as plumbline list shows it", "NAME", positional=True)]
    yes: Annotated[bool, _model("ask no question")] = False

    def run(self, out: Console) -> int:
        """Remove it, after a question."""
        name = _named(self.name)
        found = _stored(name)
        if found is None:
            raise UnusableInput(f"{name} has not been downloaded: plumbline list shows what has")
        size, remove = found
        if not self.yes and not ask(f"Remove {name}, {size_text(size)}?"):
            put("Nothing was removed. (Without a terminal, --yes removes it.)")
            return 1
        remove()
        put(f"Removed {name}, {size_text(size)}.")
        return 0


def fetch_missing(text: str, *, yes: bool) -> None:
    """Download the model of a start if it is named and missing; at a terminal ask before, unless `yes`.

    Raises:
        FileNotFoundError: the hub does not give it, or the answer was no.
    """
    name = None if Path(text).expanduser().exists() else read_name(text)
    if name is None or cached(name) is not None:
        return
    offered = offer(name)
    if yes or not sys.stdin.isatty():
        print(offered, file=sys.stderr)
    elif not ask(f"{offered}\nDownload it?", default=True):
        raise HubError(f"{name} is not on this machine: plumbline pull {name} downloads it")
    download(offered)


def ask(question: str, *, default: bool = False) -> bool:
    """Ask at the terminal; without one the answer is no."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} [{'Y/n' if default else 'y/N'}] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    return answer.strip().lower() in ("y", "yes") or (default and answer == "\n")


def _named(text: str) -> HubName:
    name = read_name(text)
    if name is None:
        raise OptionError(
            "NAME", f"must be a name on the hub such as OWNER/NAME or OWNER/NAME:Q4_K_M, got {shown(text)}"
        )
    return name


def _stored(name: HubName) -> tuple[int, Callable[[], None]] | None:
    """Return the bytes that removing a model frees, and what removes it; None if nothing of it is here."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    folder = repository_folder(name.repository)
    if not name.part and not name.revision:  # With what interrupted downloads have left.
        paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        size = sum(path.stat().st_size for path in paths)
        return (size, partial(shutil.rmtree, folder)) if paths else None
    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return None
    of = (each for each in cache.repos if each.repo_type == "model" and each.repo_id == name.repository)
    repository = next(of, None)
    if repository is None:
        return None
    revisions = [
        each
        for each in repository.revisions
        if not name.revision or name.revision in each.refs or each.commit_hash.startswith(name.revision)
    ]
    if not name.part:
        plan = cache.delete_revisions(*(each.commit_hash for each in revisions))
        return (plan.expected_freed_size, plan.execute) if revisions else None
    return _stored_part(folder, revisions, name.part)


def _stored_part(
    folder: Path, revisions: list[CachedRevisionInfo], part: str
) -> tuple[int, Callable[[], None]] | None:
    """Do as `_stored` for one GGUF file with its pieces, in all of these revisions."""
    files: dict[Path, CachedFileInfo] = {}
    for revision in revisions:
        by_path = {
            each.file_path.relative_to(revision.snapshot_path).as_posix(): each for each in revision.files
        }
        with suppress(NoModelError):
            files |= {by_path[path].file_path: by_path[path] for path in chosen_files(by_path, part)}

    def remove() -> None:
        for path, file in files.items():
            path.unlink()
            file.blob_path.unlink(missing_ok=True)
        if not any(path.is_file() for kind in ("blobs/*", "snapshots/**/*") for path in folder.glob(kind)):
            shutil.rmtree(folder)

    sizes = {file.blob_path: file.size_on_disk for file in files.values()}
    return (sum(sizes.values()), remove) if files else None
