"""Find the files of a model, and name one that is missing or broken."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from plumbline.base.end_tokens import ends_in_template
from plumbline.base.gguf_file import title_of
from plumbline.hub.files import find_model
from plumbline.pocket import MODEL_DIR, MODEL_NAME
from plumbline.server.settings import OptionError, Settings
from plumbline.server.settings.values import read_bounded, reason_of

__all__ = ["find_files", "given_ends", "model_name", "named_files", "read_template"]


def find_files(settings: Settings) -> tuple[Path, Path | None]:
    """Return the folder of the only model of the settings, and its GGUF file if it is one.

    Raises:
        OptionError: it is neither a folder, nor a GGUF file, nor a hub id that can be reached.
    """
    _, path = _only(settings)
    try:
        model = MODEL_DIR if path in ("", MODEL_NAME) else find_model(path)
    except FileNotFoundError as error:
        raise OptionError("--model", f"cannot be used: {error}") from error
    return (MODEL_DIR, model) if model.is_file() else (model, None)


def _only(settings: Settings) -> tuple[str, str]:
    """Return the name and the path of the only model of the settings; both are empty for the pocket model."""
    return settings.models[0] if settings.models else ("", "")


def model_name(folder: Path, gguf: Path | None, settings: Settings) -> str:
    """Return the name of the only model of the settings: the one it is given, or that of its folder, file or hub id."""
    name, path = _only(settings)
    if name or not path:
        return name or MODEL_NAME
    return title_of(gguf) if gguf is not None else folder.name if Path(path).expanduser().is_dir() else path


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


def read_template(path: str) -> str:
    """Return the text of a file that `--chat-template` names.

    Raises:
        OptionError: it cannot be read, or is empty.
    """
    try:
        source = read_bounded(path).decode()
    except UnicodeDecodeError:
        raise OptionError("--chat-template", f"names {path}, which is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise OptionError(
            "--chat-template", f"names {path}, which cannot be read: {reason_of(error)}"
        ) from error
    if not source.strip():
        raise OptionError("--chat-template", f"names {path}, which is empty")
    return source


def given_ends(settings: Settings, tokens: Mapping[str, int]) -> frozenset[int]:
    """Return the ends of a turn that the file of `--chat-template` writes; those of the model's own are found with it.

    Args:
        settings: with `chat_template`.
        tokens: the ids of the model's added tokens by their text.
    """
    path = os.path.expanduser(settings.chat_template)
    return ends_in_template(read_template(path), tokens) if path and os.path.isfile(path) else frozenset()
