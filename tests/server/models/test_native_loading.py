"""Our engine loads a model with kernels, a type, memory and threads that fit the device, or says why not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from support.found_gpus import find_a_gpu
from transformers import AutoConfig

from plumbline.engines.native.models import describe
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.engines import choose_engine
from plumbline.server.loading.memory import weight_bytes
from plumbline.server.loading.native import memory as native_memory
from plumbline.server.loading.native import native_loader as native_engine
from plumbline.server.loading.native import native_model
from plumbline.server.loading.native.memory import loaded_bytes
from plumbline.server.loading.native.native_model import NativeModel, describe_model, native_dtype
from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings, SettingsError


class _WeightsReachedError(Exception):
    """The start came to the weights, with or without compiled kernels."""


def compiled(settings: Settings) -> bool:
    """Return whether the pocket model would run on compiled kernels with these settings."""
    with pytest.MonkeyPatch.context() as patch:

        def stop(*_: object, library: object, **__: object) -> None:
            raise _WeightsReachedError(library is not None)

        patch.setattr(native_engine, "load_model", stop)
        with pytest.raises(_WeightsReachedError) as reached:
            load(settings)
    return bool(reached.value.args[0])


@pytest.mark.parametrize(("choice", "expected"), [("auto", True), ("on", True), ("off", False)])
def test_kernels_are_compiled_unless_the_operator_forbids_it(choice: str, expected: bool) -> None:
    assert compiled(Settings(compile=choice)) is expected  # type: ignore[arg-type]


def test_without_a_compiler_torch_runs_the_model_and_one_line_says_what_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native_model.compiled_kernels.cache_clear()  # type: ignore[attr-defined]
    monkeypatch.setenv("CXX", "no-such-compiler")
    runs_on = load(Settings()).engine.info.runs_on
    assert "with torch (compiled kernels would be" in runs_on
    assert "no C++ compiler 'no-such-compiler' was found; install one" in runs_on
    with pytest.raises(SettingsError, match=r"--compile is on, but .* install one"):
        compiled(Settings(compile="on"))


def test_kernels_that_do_not_support_the_type_of_the_weights_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"--compile is on, but .*torch.float16"):
        compiled(Settings(compile="on", dtype="float16"))


def test_kernels_of_a_cpu_are_refused_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    find_a_gpu(monkeypatch)
    with pytest.raises(
        SettingsError, match="--compile is on, but kernels are compiled for a CPU, not for cuda"
    ):
        compiled(Settings(compile="on"))
    with pytest.raises(SettingsError, match=r"--quantization is int8, .* not for cuda"):
        compiled(Settings(quantization="int8"))
    assert not compiled(Settings())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(), None),
        (
            Settings(device_memory=0.1),
            r"--max-model-len is 2048, .* the GPU has 0 B left beside the weights: no context fits",
        ),
        (Settings(device_memory=0.5, kv_cache_bytes=256 << 20), "--device-memory has no effect"),
        (
            Settings(kv_cache_bytes=256 << 20),
            r"MiB beside .* of weights and .* of CUDA graphs \(--no-cuda-graphs\), and cuda:0 has 300",
        ),
        (Settings(cuda_graphs=False, kv_cache_bytes=256 << 20), None),
        (Settings(cuda_graphs=False, kv_cache_bytes=299 << 20), "beside .* of weights, and cuda:0 has"),
    ],
)
def test_what_a_gpu_cannot_hold_is_refused_before_weights_are_read(
    settings: Settings, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graphs of 4,096 requests of 1,024 tokens take 40 MiB, and the cache what is left unless it is given."""
    find_a_gpu(monkeypatch, memory=300 << 20)
    settings = msgspec.structs.replace(settings, max_num_seqs=4096, max_model_len=2048)
    if words is None:
        assert not compiled(settings)
        return
    with pytest.raises(SettingsError, match=words):
        compiled(settings)


@pytest.mark.parametrize(("lora_dir", "rows"), [("", 0), (".", 2 * 4 * 16)])
def test_the_cache_of_a_gpu_takes_what_loaded_weights_and_adapters_leave(
    lora_dir: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights may be wider than in their files; four adapters of rank 16 are there twice, as read and in stacks."""
    find_a_gpu(monkeypatch, memory=1000 << 20)

    def load_model(*_: object, **__: object) -> SimpleNamespace:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (150 << 20, 1000 << 20))
        layer = SimpleNamespace(shape=(8192, 8192))
        return SimpleNamespace(
            places=[SimpleNamespace(layer=layer)], library=None, vision=None, rounding_losses={}
        )

    def stop(_: object, *, num_blocks: int, **__: object) -> None:
        raise _WeightsReachedError(num_blocks)

    monkeypatch.setattr(native_engine, "load_model", load_model)
    monkeypatch.setattr(native_engine, "ModelRunner", stop)
    settings = Settings(cuda_graphs=False, lora_dir=lora_dir, max_num_seqs=4096, max_model_len=2048)
    with pytest.raises(_WeightsReachedError) as reached:
        load(settings)
    width = describe_model(Settings(device="cpu"), MODEL_DIR, None).description.cache_width
    left = (50 << 20) - rows * (8192 + 8192) * 2
    assert reached.value.args[0] == left // (width * 2 * 64)


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        (Settings(), torch.bfloat16),
        (Settings(dtype="float16"), torch.float16),
        (Settings(dtype="float32"), torch.float32),
    ],
)
def test_quantised_weights_of_fp16_run_in_bf16_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, dtype: torch.dtype
) -> None:
    config = AutoConfig.for_model("llama", dtype="float16").to_dict()
    whole = NativeModel(describe(config), None)
    rounded = NativeModel(describe(config | {"quantization_config": {"quant_method": "fp8"}}), None)
    assert native_dtype(settings, rounded) == dtype
    assert native_dtype(Settings(), whole) == torch.float16
    find_a_gpu(monkeypatch)
    assert native_dtype(Settings(), rounded) == torch.float16


def test_weights_are_counted_in_the_type_that_a_gpu_keeps_them_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of files are counted in test_gpus.py."""
    whole = describe_model(Settings(device="cpu"), MODEL_DIR, None)
    stored = weight_bytes(MODEL_DIR, None)
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16), ("cuda", torch.float32)):
        monkeypatch.setattr(native_memory, "device_of", lambda _, name=device: torch.device(name))
        wider = stored * dtype.itemsize // whole.description.dtype.itemsize
        assert loaded_bytes(Settings(), whole, MODEL_DIR, dtype) == (stored if device == "cpu" else wider)


def test_rounded_weights_need_compiled_kernels() -> None:
    with pytest.raises(SettingsError, match=r"--quantization is int8, which .* but --compile is off"):
        compiled(Settings(quantization="int8", compile="off"))
    with pytest.raises(SettingsError, match=r"--quantization is an option of plumbline.*--engine-args"):
        choose_engine(Settings(quantization="int4", engine="vllm"), MODEL_DIR, None)


def test_threads_are_those_of_the_option_or_measured_and_the_start_says_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plumbline.server.loading.native.native_loader.fastest", lambda counts, step: 7)
    given, measured = (load(Settings(threads=threads)).engine.info.runs_on for threads in (3, None))
    assert given == "cpu in bfloat16 with compiled kernels on 3 threads (--threads)"
    assert "with compiled kernels on 7 threads (" in measured
    with pytest.raises(
        SettingsError, match=r"--threads is 2, which needs compiled kernels, but --compile is off"
    ):
        compiled(Settings(threads=2, compile="off"))


@pytest.mark.parametrize(
    ("names", "size"),
    [
        (["model.safetensors", "consolidated.safetensors"], 10),
        (
            [
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "consolidated.safetensors",
            ],
            20,
        ),
        (["a.safetensors", "b.safetensors", "model.txt"], 20),
    ],
)
def test_weights_that_a_folder_has_twice_count_once(tmp_path: Path, names: list[str], size: int) -> None:
    for name in names:
        (tmp_path / name).write_bytes(bytes(10))
    assert weight_bytes(tmp_path, None) == size
