"""The engine of a model is chosen by the model or by `--engine`, with a reason; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from plumbline.engines.native.models import describe
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading import engines
from plumbline.server.loading.engines import EngineChoice, choose_engine
from plumbline.server.loading.model import load
from plumbline.server.settings import Settings, SettingsError

GGUF = Path("model.gguf")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A model that our engine does not have."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "vocab_size": 10}), "utf-8")
    return tmp_path


def test_a_supported_model_runs_on_our_engine() -> None:
    chosen = choose_engine(Settings(), MODEL_DIR, None)
    assert chosen.name == "plumbline"
    assert chosen.reason


def test_a_gguf_file_runs_on_llama_cpp(tmp_path: Path) -> None:
    assert choose_engine(Settings(), tmp_path, GGUF).name == "llama_cpp"
    assert choose_engine(Settings(engine="llama_cpp"), tmp_path, GGUF).name == "llama_cpp"


def test_another_model_runs_on_transformers_and_the_reason_names_what_is_missing(foreign: Path) -> None:
    chosen = choose_engine(Settings(), foreign, None)
    assert chosen.name == "transformers"
    assert "mamba" in chosen.reason


def test_a_model_of_images_and_text_runs_where_images_are_taken(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": {}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    chosen = choose_engine(Settings(), tmp_path, None)
    assert chosen.name == "transformers"
    assert "not images" in chosen.reason
    assert choose_engine(Settings(engine="plumbline"), tmp_path, None).name == "plumbline"


def test_a_model_without_kernels_for_the_device_runs_elsewhere_or_is_refused_with_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AutoConfig.for_model("qwen3_moe", head_dim=512).save_pretrained(tmp_path)
    assert choose_engine(Settings(), tmp_path, None).name == "plumbline"
    monkeypatch.setattr(engines, "device_of", lambda _: torch.device("cuda", 0))
    chosen = choose_engine(Settings(), tmp_path, None)
    assert chosen.name == "transformers"
    assert "no heads of 512" in chosen.reason


def test_a_quantised_model_runs_on_our_engine_but_on_a_gpu_on_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AutoConfig.for_model("llama").to_dict() | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    chosen = choose_engine(Settings(), tmp_path, None)
    assert chosen == EngineChoice("plumbline", "it supports this model and reads its quantised weights")
    monkeypatch.setattr(engines, "device_of", lambda _: torch.device("cuda", 0))
    for installed, name in ((None, "plumbline"), (object(), "vllm")):
        monkeypatch.setattr(engines, "find_spec", lambda _, found=installed: found)
        chosen = choose_engine(Settings(), tmp_path, None)
        assert chosen.name == name
        assert "dequantises" in chosen.reason


def test_a_model_with_adapters_runs_on_our_engine_if_that_supports_it(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: object())
    adapters = Settings(loras=(("a", "b"),))
    assert choose_engine(adapters, MODEL_DIR, None).name == "plumbline"
    assert choose_engine(adapters, foreign, None).name == "vllm"


@pytest.mark.parametrize("engine", ["plumbline", "transformers"])
def test_the_operator_decides(engine: str, foreign: Path) -> None:
    assert choose_engine(Settings(engine=engine), foreign, None) == EngineChoice(engine, "--engine")


@pytest.mark.parametrize(
    ("settings", "gguf", "message"),
    [
        (Settings(engine="plumbline"), GGUF, "--engine must be llama_cpp or auto"),
        (Settings(engine="transformers"), GGUF, "--engine must be llama_cpp or auto"),
        (Settings(engine="llama_cpp"), None, "give one as --model"),
        (Settings(engine_args=("n_threads=2",)), None, "--engine-args is an option of llama_cpp, vllm"),
        (Settings(batch_invariant=True), GGUF, "--batch-invariant is an option of plumbline"),
        (Settings(loras=(("a", "b"),)), GGUF, "--lora is an option of plumbline, vllm"),
        (Settings(engine="transformers", lora_dir="."), None, "--lora-dir is an option of plumbline, vllm"),
        (Settings(device_memory=0.5), None, "--device-memory is an option of vllm"),
        (Settings(engine="transformers", block_size=16), None, "--block-size is an option of plumbline"),
        (Settings(engine="vllm", max_num_batched_tokens=1024), None, "--engine-args max_num_batched_tokens"),
        (Settings(engine="vllm", device="cuda:1"), None, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_does_not_fit_is_refused(settings: Settings, gguf: Path | None, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        choose_engine(settings, MODEL_DIR, gguf)


class _WeightsReachedError(Exception):
    """The start came to the weights, with or without compiled kernels."""


def compiled(settings: Settings) -> bool:
    """Return whether the pocket model would run on compiled kernels with these settings."""
    with pytest.MonkeyPatch.context() as patch:

        def stop(*_: object, library: object, **__: object) -> None:
            raise _WeightsReachedError(library is not None)

        patch.setattr(engines, "load_model", stop)
        with pytest.raises(_WeightsReachedError) as reached:
            load(settings)
    return bool(reached.value.args[0])


@pytest.mark.parametrize(("choice", "expected"), [("auto", True), ("on", True), ("off", False)])
def test_kernels_are_compiled_unless_the_operator_forbids_it(choice: str, expected: bool) -> None:
    assert compiled(Settings(compile=choice)) is expected  # type: ignore[arg-type]


def test_without_a_compiler_torch_runs_the_model_and_one_line_says_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engines.compiled_kernels.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    caplog.set_level("INFO", "plumbline.engines")
    assert not compiled(Settings())
    (line,) = [record.getMessage() for record in caplog.records if "compiled" in record.getMessage()]
    assert "no C++ compiler 'no-such-compiler' was found; install one" in line
    with pytest.raises(SettingsError, match=r"--compile is on, but .* install one"):
        compiled(Settings(compile="on"))


def test_kernels_that_do_not_support_the_type_of_the_weights_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"--compile is on, but .*torch.float16"):
        compiled(Settings(compile="on", dtype="float16"))


def test_kernels_of_a_cpu_are_refused_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "device_of", lambda _: torch.device("cuda"))
    with pytest.raises(
        SettingsError, match="--compile is on, but kernels are compiled for a CPU, not for cuda"
    ):
        compiled(Settings(compile="on"))
    with pytest.raises(SettingsError, match=r"--quantization is int8, .* not for cuda"):
        compiled(Settings(quantization="int8"))
    assert not compiled(Settings())


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        (Settings(), torch.bfloat16),
        (Settings(dtype="float16"), torch.float16),
        (Settings(dtype="float32"), torch.float32),
    ],
)
def test_quantised_weights_of_fp16_run_in_bf16_on_a_cpu(settings: Settings, dtype: torch.dtype) -> None:
    config = AutoConfig.for_model("llama", dtype="float16").to_dict()
    model = describe(config | {"quantization_config": {"quant_method": "fp8"}})
    assert engines._dtype(settings, model, torch.device("cpu")) == dtype
    assert engines._dtype(Settings(), model, torch.device("cuda")) is None
    assert engines._dtype(Settings(), describe(config), torch.device("cpu")) is None


def test_rounded_weights_need_compiled_kernels() -> None:
    with pytest.raises(SettingsError, match=r"--quantization is int8, which .* but --compile is off"):
        compiled(Settings(quantization="int8", compile="off"))
    with pytest.raises(SettingsError, match=r"--quantization is an option of plumbline.*--engine-args"):
        choose_engine(Settings(quantization="int4", engine="vllm"), MODEL_DIR, None)
