"""Choose the files of a repository that are a model."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["MODEL_FILES", "NoModelError", "chosen_files", "entry_file"]

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer*")
"""Patterns of the files that serving reads of a model that is a folder."""
_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "Q4_1", "Q8_0", "Q6_K", "BF16", "F16")
"""The quantisation of a name without one, in this order, as llama.cpp and Ollama choose it."""
_DEFAULT_TAG = "latest"
"""What other tools call the quantisation of a name without one."""
_PART = re.compile(r"-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf$")
_SHOWN = 12
"""GGUF files that an error lists."""


class NoModelError(ValueError):
    """A repository has no files that can be served; the message says what it has."""


def chosen_files(paths: Iterable[str], part: str) -> list[str]:
    """Return the patterns of the files that are a model: one GGUF file with all its pieces, or those of a folder.

    Args:
        paths: the files of a repository.
        part: a GGUF file or a quantisation; empty for the whole model.

    Raises:
        NoModelError: no file is meant, or there is none that can be served.
    """
    paths = sorted(paths)
    files = [path for path in paths if path.endswith(".gguf") and not _is_companion(path)]
    if part and part != _DEFAULT_TAG:
        return _pieces(_named(files, part), files)
    if any(path.endswith(".safetensors") for path in paths) and "config.json" in paths:
        return list(MODEL_FILES)
    if not files:
        raise NoModelError("it has neither safetensors nor GGUF files, which are all that can be served")
    return _pieces(_preferred(files), files)


def _preferred(files: list[str]) -> str:
    for quantisation in _PREFERRED:
        if found := _of_quantisation(files, quantisation):
            return found[0]
    return files[0]


def entry_file(paths: list[str]) -> str:
    """Return the GGUF file by which a chosen model is loaded, or an empty text for one that is a folder."""
    return paths[0] if paths[0].endswith(".gguf") else ""


def _is_companion(path: str) -> bool:
    """Whether a GGUF file is not a language model: the eyes of one, or statistics of its activations."""
    name = path.rsplit("/", 1)[-1].lower()
    return "mmproj" in name or "imatrix" in name


def _named(files: list[str], part: str) -> str:
    if part.endswith(".gguf"):
        found = [path for path in files if path == part or path.endswith(f"/{part}")]
    else:
        found = _of_quantisation(files, part)
        if not found and (kinds := _of_quantisation(files, part, ends="_")):  # Q8 means Q8_0.
            found = [_preferred(kinds)]
    if not found:
        raise NoModelError(f"it has no GGUF file for {part[:80]!r}; it has {_list(files)}")
    return found[0]


def _of_quantisation(files: list[str], quantisation: str, ends: str = "$|[-./]") -> list[str]:
    """Return the files of a quantisation, those with the plainest names first: Q4_K_M before UD-Q4_K_M."""
    of = re.compile(rf"(?:^|[-._/]){re.escape(quantisation)}(?:{ends})", re.IGNORECASE)
    return sorted(
        (path for path in files if of.search(path.removesuffix(".gguf"))), key=lambda path: (len(path), path)
    )


def _pieces(path: str, files: list[str]) -> list[str]:
    """Return all pieces of a GGUF file that is split, or the file.

    Raises:
        NoModelError: a piece is missing.
    """
    piece = _PART.search(path)
    if piece is None:
        return [path]
    head = path[: piece.start()]
    wanted = [f"{head}-{number:05}-of-{piece['total']}.gguf" for number in range(1, int(piece["total"]) + 1)]
    if missing := sorted(set(wanted) - set(files)):
        raise NoModelError(f"{missing[0]} is missing")
    return wanted


def _list(files: list[str]) -> str:
    if not files:
        return "no GGUF file"
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return f"{', '.join(files[:_SHOWN])}{more}"
