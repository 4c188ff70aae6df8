"""Find the files of a model by its name: on this machine, in the cache, or else on the hub."""

from __future__ import annotations

from pathlib import Path

from plumbline.base.gguf_file import first_piece, is_later_piece
from plumbline.hub.names import read_name
from plumbline.hub.repository import cached, download, offer

__all__ = ["find_model"]

_TEXTS = frozenset({".jinja", ".json", ".model", ".py", ".tiktoken", ".txt"})
_INNER = ("additional_chat_templates", "encoding")
"""Folders of a model with files that are read."""
_MOST_TEXT = 256 * 1024**2
"""Bytes of a file that is read whole. The tokenizers of published models have up to 35 MB."""


def find_model(text: str | Path) -> Path:
    """Return the folder or the GGUF file of a model; what is not on this machine is downloaded.

    Args:
        text: a folder, a GGUF file, or a name as `read_name` takes it.

    Raises:
        FileNotFoundError: it is nothing of these, the hub does not give it, or the folder has a file that cannot be one
            of a model.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        _check_kinds(path)
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise FileNotFoundError(f"{path} is neither a folder nor a GGUF file")
        if is_later_piece(path):
            raise FileNotFoundError(f"{path} is a later piece of a model; give {first_piece(path)}")
        return path
    name = read_name(str(text))
    if name is None:
        raise FileNotFoundError(
            f"{str(text)[:200]} is neither a folder, nor a GGUF file, nor a name on the hub such as OWNER/NAME or "
            "OWNER/NAME:Q4_K_M"
        )
    found = cached(name) or download(offer(name))
    if found.is_dir():
        _check_kinds(found)
    return found


def _check_kinds(folder: Path) -> None:
    """Refuse a folder of GGUF files, and one with something that would be read without end, such as a pipe."""
    if not (folder / "config.json").exists() and (files := sorted(folder.glob("*.gguf"))):
        raise FileNotFoundError(
            f"{folder} has no config.json, but GGUF files: give one of them, such as {files[0]}"
        )
    inner = [path for name in _INNER for path in (folder / name).glob("*")]
    for path in sorted([*folder.iterdir(), *inner]):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise FileNotFoundError(f"{path} is a pipe, a socket or a device; a model folder has files only")
        if path.suffix in _TEXTS and path.is_file() and path.stat().st_size > _MOST_TEXT:
            raise FileNotFoundError(f"{path} has more than {_MOST_TEXT >> 20} MiB")
