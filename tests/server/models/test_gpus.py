"""Laws of the choice of an engine on GPUs, with GPUs and weights that are not there.

* Several GPUs, a model larger than one, and what our kernels do not run go to vLLM, with the reason.
* Without vLLM the answer says what to install, and a model that fits one GPU runs on ours.
* What does not fit is refused with what does, before weights are read.
* A llama.cpp that was built for CPUs is not chosen for a GPU, and weights of GGUF files are counted as they are kept.
"""

from __future__ import annotations

import json
import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from support.found_gpus import find_a_gpu
from support.weights.gguf_files import random_reference, write_gguf
from transformers import AutoConfig

from plumbline.engines.native.models.gguf import load_gguf, read_model
from plumbline.engines.native.models.gguf.description import GgufModel
from plumbline.engines.native.models.linear import Linear
from plumbline.server.loading import engines
from plumbline.server.loading.engines import choose_engine
from plumbline.server.loading.native import memory
from plumbline.server.loading.native.memory import check_memory, engine_config
from plumbline.server.loading.native.native_model import describe_model, native_dtype
from plumbline.server.settings import OptionError, Settings
from plumbline_kernels import _backend
from plumbline_kernels.narrow import NarrowWeight

GIB = 1 << 30


def model(folder: Path, gib: float, **more: object) -> Path:
    """Write the config of Qwen3 8B and a file of weights with holes."""
    shape = {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }
    config = AutoConfig.for_model("qwen3", head_dim=128, max_position_embeddings=40960, **shape)
    fields = json.loads(config.to_json_string()) | {"dtype": "bfloat16"} | more
    (folder / "config.json").write_text(json.dumps(fields), "utf-8")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(int(gib * GIB))
    return folder


def with_vllm(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(
        engines,
        "find_spec",
        lambda name: (object() if installed else None) if name == "vllm" else find_spec(name),
    )


@pytest.mark.parametrize(
    ("gib", "count", "capability", "reason"),
    [
        (15, 1, (9, 0), None),
        (15, 1, (12, 0), None),
        (15, 8, (9, 0), "this machine has 8 GPUs, and ours runs a model on one"),
        (100, 1, (9, 0), "its weights take 100 GiB, and a GPU has 72 GiB for a model"),
        (440, 8, (9, 0), "its weights take 440 GiB"),
        (15, 1, (7, 5), "our kernels need a GPU of compute capability 8.0 or newer, not 7.5"),
    ],
)
def test_vllm_runs_what_does_not_suit_one_gpu(
    gib: float,
    count: int,
    capability: tuple[int, int],
    reason: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = model(tmp_path, gib)
    find_a_gpu(monkeypatch, 80 * GIB, count, capability)
    with_vllm(monkeypatch, True)
    chosen = choose_engine(Settings(), folder, None)
    assert chosen.name == ("plumbline" if reason is None else "vllm")
    assert (reason or "it supports this model") in chosen.reason
    assert "\n" not in chosen.reason
    if capability >= (8, 0):  # An option that only ours has is a choice.
        assert choose_engine(Settings(block_size=16), folder, None).name == "plumbline"


def test_without_vllm_the_answer_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path, 15)
    with_vllm(monkeypatch, False)
    find_a_gpu(monkeypatch, 80 * GIB, count=8)
    chosen = choose_engine(Settings(), folder, None)
    assert chosen.name == "plumbline"
    assert "8 GPUs, and ours runs a model on one (pip install vllm: it uses all)" in chosen.reason
    assert choose_engine(Settings(device="cuda:1"), folder, None).reason == "it supports this model"
    with pytest.raises(OptionError, match=r"--engine is auto, and its weights take .*: pip install vllm"):
        choose_engine(Settings(), model(tmp_path, 100), None)
    find_a_gpu(monkeypatch, 16 * GIB, capability=(7, 5))
    chosen = choose_engine(Settings(), folder, None)
    assert chosen.name == "transformers"
    assert "pip install vllm" in chosen.reason


def test_the_longest_context_that_fits_is_named_and_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Qwen3 8B on a card of 24 GB."""
    find_a_gpu(monkeypatch, 24 * GIB)
    settings = Settings(engine="plumbline")
    described = describe_model(settings, model(tmp_path, 15), None)
    dtype, room = native_dtype(settings, described), int(5.22 * GIB)
    with pytest.raises(OptionError) as refused:
        engine_config(described, settings, dtype, room)
    found = re.search(r"(\d+) tokens fit \(--max-model-len \1\)", str(refused.value))
    assert found is not None
    assert 37_900 <= int(found[1]) <= 38_000
    engine_config(described, Settings(max_model_len=int(found[1])), dtype, room)
    with pytest.raises(OptionError):
        engine_config(described, Settings(max_model_len=int(found[1]) + 16), dtype, room)


@pytest.mark.parametrize(("gib", "advice"), [(30, "in 8 bits"), (60, "in 4 bits"), (200, "a smaller model")])
def test_weights_that_do_not_fit_are_told_which_do(
    gib: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_a_gpu(monkeypatch, 24 * GIB)
    with pytest.raises(OptionError, match=advice):
        check_memory(GIB, gib * GIB, 0, torch.device("cuda", 0))


@pytest.mark.parametrize("uses_gpus", [False, True])
def test_a_llama_cpp_that_was_built_for_cpus_is_not_chosen_for_a_gpu(
    uses_gpus: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: name if name == "llama_cpp" else None)
    monkeypatch.setattr(engines, "_llama_cpp_uses_gpus", lambda: uses_gpus)
    find_a_gpu(monkeypatch)
    path = tmp_path / "a.gguf"
    write_gguf(path, random_reference("llama"), "llama", GGMLQuantizationType.F32)
    # Weights that ours would widen, for which llama.cpp is the better one where it runs on the GPU.
    monkeypatch.setattr(
        GgufModel, "kinds", property(lambda _: frozenset({0, int(GGMLQuantizationType.NVFP4)}))
    )
    chosen = choose_engine(Settings(), tmp_path, path)
    assert chosen.name == ("llama_cpp" if uses_gpus else "plumbline")
    assert ("built for CPUs" in chosen.reason) != uses_gpus


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_0", "Q4_1", "F16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "mixtral"])
def test_weights_of_a_file_are_counted_as_a_gpu_keeps_them(
    kind: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded for the kernels of a GPU, which are not run."""
    path = tmp_path / "a.gguf"
    write_gguf(path, random_reference(architecture), architecture, GGMLQuantizationType[kind])
    model = read_model(path)
    monkeypatch.setattr(_backend, "_FORCED", True)
    loaded: Any = load_gguf(model, torch.bfloat16)
    layers = {id(layer): layer for layer in (*(place.layer for place in loaded.places), loaded.head)}
    kept = loaded.embedding.nbytes + sum(_kept(layer) for layer in layers.values())
    if architecture == "mixtral":
        experts = [layer.feed_forward for layer in loaded._layers]
        kept += sum(_bytes(stack.weight) for each in experts for stack in (each.gate_up, each.down))
    norms = sum(2 * math.prod(each.shape) for each in model.tensors.values() if len(each.shape) == 1)
    assert kept <= model.device_bytes(2) - norms <= 1.4 * kept
    monkeypatch.setattr(memory, "device_of", lambda _: torch.device("cuda", 0))
    described = describe_model(Settings(device="cpu"), tmp_path, path)
    assert memory.loaded_bytes(Settings(), described, tmp_path, torch.bfloat16) == model.device_bytes(2)


def _kept(layer: Linear) -> int:
    return 2 * math.prod(layer.shape) if layer._narrow is None else _bytes(layer._narrow)


def _bytes(weight: torch.Tensor | NarrowWeight) -> int:
    if isinstance(weight, torch.Tensor):
        return weight.nbytes
    return sum(each.nbytes for each in (weight.levels, weight.scales, weight.shifts) if each is not None)
