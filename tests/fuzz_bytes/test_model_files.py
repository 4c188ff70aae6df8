"""Laws of damaged model files: each is read, or refused in one line by an error of ours, with bounded memory.

- `config.json` of every family, with every format of quantised weights, and with images; `generation_config.json`.
- The files of an image processor, and the configuration of an adapter.
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
from typing import Any

import pytest
import torch
from safetensors.torch import save
from support.weights.lines_and_tiles import MAKERS
from support.weights.model_families import CASES, SMALL
from support.weights.tokenizers import KINDS, reference
from support.weights.vision import picture, vision_files

from plumbline.answer.text.tokenizer import TextTokenizer, UnencodableTextError, UnsupportedTokenizerError
from plumbline.engines.adapters import adapter_rank, read_config
from plumbline.engines.native.models import UnsupportedModelError, WeightsError
from plumbline.engines.native.models.adapters.adapter_config import AdapterConfig, AdapterError
from plumbline.engines.native.models.checkpoint import Checkpoint
from plumbline.engines.native.models.families import read_description
from plumbline.engines.native.models.vision.families import read_preparation, read_vision
from plumbline.port.engine import RefusedRequestError
from plumbline.server.loading.model_files import named_files

from .damage import damaged, damaged_json, explore

_MOST_BYTES = 64 << 20
_CONFIG = "config.json"
"""For files of less than 100 kB; a vocabulary may have holes, and its table takes 16 bytes for each id."""
_ERRORS = (
    AdapterError,
    RefusedRequestError,
    UnencodableTextError,
    UnsupportedModelError,
    UnsupportedTokenizerError,
    WeightsError,
)
_NOT_JSON = "is not valid JSON"

_CONFIGS = [{"model_type": case.family} | SMALL | case.changes for case in CASES]
_GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
}
_TORCHAO = {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {"granularity": {"_type": "PerRow"}}}
_QUANTISED: list[dict[str, Any]] = [
    {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [48, 32]},
    {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True},
    {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    {"quant_method": "torchao", "quant_type": {"default": _TORCHAO}},
    {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": _GROUP},
        "ignore": ["lm_head", "re:.*gate"],
    },
]
_VISIONS = {family: vision_files(family) for family in ("llava", "gemma3", "qwen2_vl", "qwen3_vl", *MAKERS)}
_ADAPTER = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 8.0,
    "bias": "none",
    "target_modules": ["q_proj", "v_proj"],
    "layers_to_transform": [0, 1],
    "rank_pattern": {"layers.0.self_attn.q_proj": 2},
    "alpha_pattern": {"^model.layers.\\d+.self_attn.v_proj": 16},
    "use_rslora": True,
    "lora_dropout": 0.05,
}
_TOKENIZERS = [json.loads(reference(kind).to_str()) for kind in KINDS]
_PICTURE = picture(40, 30)
_SHAPES = {"a": (2, 3), "b": (4,)}
_WEIGHTS = save({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}, {"format": "pt"})


def refused(read: Callable[[Path], object], folder: Path) -> bool:
    """Return whether a folder is refused, and check the error and the memory."""
    tracemalloc.start()
    try:
        with named_files(folder):
            read(folder)
    except (ValueError, RefusedRequestError) as error:
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


def read_images(folder: Path) -> None:
    config = json.loads((folder / _CONFIG).read_text("utf-8"))
    preparation = read_preparation(folder, read_vision(config, read_description(folder)))
    preparation.pixels(_PICTURE)


def read_adapter_config(folder: Path) -> None:
    """Read the configuration, and ask it for each module of a layer as the reader of the tensors does."""
    config = AdapterConfig(read_config(folder))
    for name in ("self_attn.q_proj", "self_attn.v_proj"):
        module = f"model.layers.1.{name}"
        config.check_target(module)
        config.rank(module)
        config.scale(module)
    adapter_rank(folder)


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
    assert any(is_read(read_description, _CONFIG, json.dumps(one).encode()) for one in _CONFIGS)
    for quantised in _QUANTISED:
        config = _CONFIGS[0] | {"quantization_config": quantised}
        assert is_read(read_description, _CONFIG, json.dumps(config).encode()), quantised
    assert is_read(read_adapter_config, "adapter_config.json", json.dumps(_ADAPTER).encode())
    for files in _VISIONS.values():
        for name, content in files.items():
            (tmp_path / name).write_text(json.dumps(content))
        read_images(tmp_path)
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


def test_a_damaged_config_of_quantised_weights_is_read_or_refused(tmp_path: Path) -> None:
    def law(data: bytes) -> None:
        (tmp_path / _CONFIG).write_bytes(data)
        refused(read_description, tmp_path)

    seeds = [_CONFIGS[0] | {"quantization_config": each} for each in _QUANTISED]
    inputs = damaged_json(_QUANTISED).map(
        lambda data: json.dumps(_CONFIGS[0] | {"quantization_config": json.loads(data)}).encode()
    )
    explore("quantization_config", inputs | damaged([json.dumps(seed).encode() for seed in seeds]), law)


@pytest.mark.parametrize("name", [_CONFIG, "preprocessor_config.json", "processor_config.json"])
def test_a_damaged_file_of_images_is_read_or_refused(tmp_path: Path, name: str) -> None:
    families = [family for family, files in _VISIONS.items() if name in files]

    def law(data: bytes) -> None:
        family, _, text = data.partition(b"\n")
        files = _VISIONS.get(family.decode("latin-1"), _VISIONS["llava"])
        for each, content in files.items():
            (tmp_path / each).write_text(json.dumps(content))
        (tmp_path / name).write_bytes(text)
        refused(read_images, tmp_path)

    seeds = [_VISIONS[family][name] for family in families]
    prefixes = [f"{family}\n".encode() for family in families]
    texts = [prefix + json.dumps(seed).encode() for prefix, seed in zip(prefixes, seeds, strict=True)]
    explore(f"images-{name}", damaged_json(seeds, prefixes) | damaged(texts), law)


def test_a_damaged_config_of_an_adapter_is_read_or_refused(tmp_path: Path) -> None:
    def law(data: bytes) -> None:
        (tmp_path / "adapter_config.json").write_bytes(data)
        refused(read_adapter_config, tmp_path)

    explore("adapter_config.json", damaged_json([_ADAPTER]) | damaged([json.dumps(_ADAPTER).encode()]), law)


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
        return bytes(len(text).to_bytes(8, "little") + text + tensors)

    inputs = {
        "model.safetensors": damaged([_WEIGHTS]) | damaged_json([header]).map(with_length),
        "model.safetensors.index.json": damaged_json([index]) | damaged([json.dumps(index).encode()]),
    }

    def law(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        refused(load_weights, tmp_path)

    explore(name, inputs[name], law)
