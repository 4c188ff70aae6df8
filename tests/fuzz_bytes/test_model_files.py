"""Laws of damaged model files: each is read, or refused in one line by an error of ours, with bounded memory.

- `config.json` of every family, and `generation_config.json`.
- `tokenizer.json` of every kind, and `tokenizer_config.json`.
- The header of `model.safetensors`, and the index of several files.

GGUF files have the same laws in tests/text/gguf/test_bytes.py. tracemalloc sees Python's memory only: the safetensors
and tokenizers libraries allocate in Rust.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from support.weights.model_families import CASES, SMALL
from support.weights.tokenizers import KINDS, reference

from plumbline.engines.native.models import UnsupportedModelError, WeightsError
from plumbline.engines.native.models.checkpoint import Checkpoint
from plumbline.engines.native.models.families import read_description
from plumbline.server.loading.model_files import named_files
from plumbline.text.tokenizer import TextTokenizer, UnsupportedTokenizerError

from .damage import damaged, damaged_json, explore

_MOST_BYTES = 64 << 20
"""For files of less than 100 kB; a vocabulary may have holes, and its table takes 16 bytes for each id."""
_ERRORS = (UnsupportedModelError, UnsupportedTokenizerError, WeightsError)
_NOT_JSON = "is not valid JSON"

_CONFIGS = [{"model_type": case.family} | SMALL | case.changes for case in CASES]
_TOKENIZERS = [json.loads(reference(kind).to_str()) for kind in KINDS]
_SHAPES = {"a": (2, 3), "b": (4,)}
_WEIGHTS = save({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}, {"format": "pt"})


def refused(read: Callable[[Path], object], folder: Path) -> bool:
    """Return whether a folder is refused, and check the error and the memory."""
    tracemalloc.start()
    try:
        with named_files(folder):
            read(folder)
    except ValueError as error:
        if not isinstance(error, _ERRORS) and _NOT_JSON not in str(error):
            raise
        message = str(error)
    else:
        message = ""
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < _MOST_BYTES
    assert "\n" not in message
    assert len(message) < 2000
    return bool(message)


def load_tokenizer(folder: Path) -> None:
    TextTokenizer.from_folder(folder).encode_text("hello")


def load_weights(folder: Path) -> None:
    with Checkpoint(folder, torch.float32, torch.device("cpu")) as checkpoint:
        for name in sorted(checkpoint.unused):
            checkpoint.fetch(name, _SHAPES.get(name, (1,)))


def test_undamaged_files_are_read(tmp_path: Path) -> None:
    def is_read(read: Callable[[Path], object], name: str, data: bytes) -> bool:
        (tmp_path / name).write_bytes(data)
        return not refused(read, tmp_path)

    assert all(is_read(load_tokenizer, "tokenizer.json", json.dumps(kind).encode()) for kind in _TOKENIZERS)
    assert any(is_read(read_description, "config.json", json.dumps(one).encode()) for one in _CONFIGS)
    (tmp_path / "model.safetensors").write_bytes(_WEIGHTS)
    with Checkpoint(tmp_path, torch.float32, torch.device("cpu")) as checkpoint:
        assert checkpoint.unused == {"a", "b"}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_damaged_config_is_read_or_refused(tmp_path: Path, name: str) -> None:
    seeds = _CONFIGS if name == "config.json" else [{"eos_token_id": [1, 2], "top_k": 20, "do_sample": True}]
    (tmp_path / "config.json").write_text(json.dumps(_CONFIGS[0]))

    def law(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        refused(read_description, tmp_path)

    texts = [json.dumps(seed).encode() for seed in seeds]
    explore(name, damaged_json(seeds) | damaged(texts), law)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_read_or_refused(tmp_path: Path, name: str) -> None:
    seeds = (
        _TOKENIZERS if name == "tokenizer.json" else [{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}]
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(_TOKENIZERS[0]))

    def law(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        refused(load_tokenizer, tmp_path)

    texts = [json.dumps(seed).encode() for seed in seeds]
    explore(name, damaged_json(seeds) | damaged(texts), law)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_damaged_weights_are_read_or_refused(tmp_path: Path, name: str) -> None:
    index = {
        "metadata": {"total_size": 32},
        "weight_map": {"a": "model.safetensors", "b": "model.safetensors"},
    }
    (tmp_path / "model.safetensors").write_bytes(_WEIGHTS)
    size = int.from_bytes(_WEIGHTS[:8], "little")
    header, tensors = json.loads(_WEIGHTS[8 : 8 + size]), _WEIGHTS[8 + size :]

    def with_length(text: bytes) -> bytes:
        return len(text).to_bytes(8, "little") + text + tensors

    inputs = {
        "model.safetensors": damaged([_WEIGHTS]) | damaged_json([header]).map(with_length),
        "model.safetensors.index.json": damaged_json([index]) | damaged([json.dumps(index).encode()]),
    }

    def law(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        refused(load_weights, tmp_path)

    explore(name, inputs[name], law)
