"""Find the files of a model, on this machine or on the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["named_files", "resolve_gguf", "resolve_model"]

_TEXTS = frozenset({".jinja", ".json", ".model", ".py", ".tiktoken", ".txt"})
_INNER = ("additional_chat_templates", "encoding")
"""Folders of a model with files that are read."""
_MOST_TEXT = 256 * 1024**2
"""Bytes of a file that is read whole. The tokenizers of published models have up to 35 MB."""


@contextmanager
def named_files(folder: Path) -> Iterator[None]:
    """Name the file of a model folder that is missing or broken.

    Raises:
        FileNotFoundError: the folder lacks a file that serving needs.
        ValueError: a file of the folder is not JSON.
    """
    try:
        yield
    except FileNotFoundError as error:
        path = Path(error.filename or "")
        if path.parent != folder:
            raise
        raise FileNotFoundError(f"the model folder {folder} has no {path.name}") from error
    except RecursionError as error:
        raise ValueError(
            f"{_broken(folder)} is not valid JSON: its lists or objects are nested too deep"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{_broken(folder)} is not valid JSON: {error}") from error
    except ValueError as error:
        if "integer string conversion" not in str(
            error
        ):  # Python's words for a number of thousands of digits.
            raise
        raise ValueError(f"{_broken(folder)} has a number with too many digits") from error


def _broken(folder: Path) -> Path:
    """Return the first file of the folder that cannot be parsed, or else the folder."""
    for path in sorted(folder.glob("*.json")):
        try:
            json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError):
            return path
    return folder


def resolve_gguf(model: str) -> Path | None:
    """Return the GGUF file that `--model` names: a path, or `OWNER/NAME:FILE.gguf` on the hub; None for another name.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    if not model.endswith(".gguf"):
        return None
    path = Path(model).expanduser()
    if path.is_file():
        return path
    repository, colon, name = model.partition(":")
    if not colon or repository.count("/") != 1:
        raise FileNotFoundError(f"{model} is neither a file nor a file on the hub, OWNER/NAME:FILE.gguf")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, name))
    except Exception as error:  # The library raises errors of many kinds.
        raise FileNotFoundError(f"{model} could not be downloaded from the hub: {_reason(error)}") from error


def _check_kinds(folder: Path) -> None:
    """Refuse a folder with something that would be read without end, such as a pipe or a link to a device."""
    inner = [path for name in _INNER for path in (folder / name).glob("*")]
    for path in sorted([*folder.iterdir(), *inner]):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise FileNotFoundError(f"{path} is a pipe, a socket or a device; a model folder has files only")
        if path.suffix in _TEXTS and path.is_file() and path.stat().st_size > _MOST_TEXT:
            raise FileNotFoundError(f"{path} has more than {_MOST_TEXT >> 20} MiB")


def _reason(error: Exception) -> str:
    """Return the first line of an error of the hub's client; advice of several lines follows it."""
    return str(error).partition("\n")[0] or type(error).__name__


def resolve_model(path_or_id: str | Path) -> Path:
    """Return the folder of a model; for a hub id, download the files that serving needs.

    Raises:
        FileNotFoundError: `path_or_id` is neither a folder nor a hub id that can be reached, or the folder has a file
            that cannot be one of a model.
    """
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        _check_kinds(path)
        return path
    name = str(path_or_id)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise FileNotFoundError(f"{name} is neither a folder nor a hub id of the form owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    patterns = ["*.json", "*.safetensors", "*.jinja", "tokenizer*"]
    try:
        path = Path(snapshot_download(name, allow_patterns=patterns))
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise FileNotFoundError(
            f"{name} is not a local folder and could not be downloaded from the hub: {_reason(error)}"
        ) from error
    _check_kinds(path)
    return path
