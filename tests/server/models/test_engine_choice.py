"""The engine of a model is chosen by the model or by `--engine`, with a reason; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from support.found_gpus import find_a_gpu
from support.weights.gguf_files import random_reference, write_gguf
from support.weights.model_families import CASES, Case
from support.weights.vision import make_model
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from plumbline.engines.native.models.families import FAMILIES
from plumbline.engines.native.models.gguf.blocks import BLOCKS
from plumbline.engines.native.models.gguf.description import GgufModel
from plumbline.pocket import MODEL_DIR
from plumbline.pocket.to_gguf import write
from plumbline.server.loading import engines
from plumbline.server.loading.engines import EngineChoice, choose_engine
from plumbline.server.loading.native.native_model import describe_model
from plumbline.server.loading.served_model import load
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


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs_on_our_engine_with_or_without_a_gpu(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kimi K2 has the fields of DeepSeek V3, and the kernels of a GPU lack Jamba's state spaces."""
    named = "deepseek_v3" if family == "kimi_k2" else family
    if named not in CONFIG_MAPPING:
        pytest.skip("transformers is older than this family")
    case = next((case for case in CASES if case.family == named), Case(named, {"hidden_size": 512}))
    config = case.config()
    fields = json.loads(config.to_json_string()) | {"model_type": family}
    (tmp_path / "config.json").write_text(json.dumps(fields), "utf-8")
    assert choose_engine(Settings(), tmp_path, None).name == "plumbline"
    find_a_gpu(monkeypatch)
    chosen = choose_engine(Settings(), tmp_path, None)
    assert chosen.name == ("plumbline" if case.kernels else "transformers")
    assert case.kernels or "Mamba 1" in chosen.reason


@pytest.fixture
def with_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the choice find llama-cpp-python."""
    monkeypatch.setattr(engines, "find_spec", lambda name: name if name == "llama_cpp" else None)
    monkeypatch.setattr(engines, "_llama_cpp_uses_gpus", lambda: True)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pocket model as a GGUF file in fp32."""
    path = tmp_path_factory.mktemp("gguf") / "pocket.gguf"
    write(MODEL_DIR, path)
    return path


def small(folder: Path, kind: GGMLQuantizationType) -> Path:
    """Write a small model with weights of a type."""
    write_gguf(folder / "a.gguf", random_reference("llama"), "llama", kind)
    return folder / "a.gguf"


@pytest.mark.usefixtures("with_llama_cpp")
@pytest.mark.parametrize("kind", [GGMLQuantizationType(number) for number in (0, 1, 30, *BLOCKS)])
def test_a_gguf_file_runs_on_our_engine_if_its_kernels_read_the_weights(
    kind: GGMLQuantizationType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path, GGMLQuantizationType.F32)
    with_kind(monkeypatch, kind)
    assert choose_engine(Settings(), tmp_path, path) == EngineChoice("plumbline", "it supports this file")
    assert choose_engine(Settings(engine="llama_cpp"), tmp_path, path).name == "llama_cpp"
    find_a_gpu(monkeypatch)
    assert choose_engine(Settings(), tmp_path, path).name == "plumbline"


def with_kind(monkeypatch: pytest.MonkeyPatch, kind: GGMLQuantizationType) -> None:
    """Let files have weights of a type."""
    monkeypatch.setattr(GgufModel, "kinds", property(lambda _: frozenset({0, int(kind)})))


@pytest.mark.usefixtures("with_llama_cpp")
def test_weights_that_ours_would_widen_run_on_llama_cpp_unless_an_option_of_ours_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path, GGMLQuantizationType.F32)
    with_kind(monkeypatch, GGMLQuantizationType.NVFP4)
    chosen = choose_engine(Settings(), tmp_path, path)
    assert chosen == EngineChoice("llama_cpp", "ours would widen the weights in NVFP4 to 16 bits")
    for given in (Settings(compile="off"), Settings(quantization="int8"), Settings(engine="plumbline")):
        assert choose_engine(given, tmp_path, path).name == "plumbline"


@pytest.mark.usefixtures("with_llama_cpp")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (Settings(dtype="float16"), "without compiled kernels: they do not support torch.float16"),
        (Settings(engine_args=("n_threads=2",)), "--engine-args is one of its options"),
    ],
)
def test_a_gguf_file_runs_on_llama_cpp_where_ours_is_slower(
    tmp_path: Path, settings: Settings, reason: str
) -> None:
    path = small(tmp_path, GGMLQuantizationType.Q8_0)
    chosen = choose_engine(settings, tmp_path, path)
    assert chosen.name == "llama_cpp"
    assert reason in chosen.reason


@pytest.mark.usefixtures("with_llama_cpp")
def test_a_gguf_file_of_another_architecture_runs_on_llama_cpp(tmp_path: Path) -> None:
    out = GGUFWriter(tmp_path / "a.gguf", "mamba")
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()
    chosen = choose_engine(Settings(), tmp_path, tmp_path / "a.gguf")
    assert chosen.name == "llama_cpp"
    assert "'mamba' is not supported" in chosen.reason


def test_without_llama_cpp_a_gguf_file_runs_on_our_engine(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    chosen = choose_engine(Settings(), file.parent, file)
    assert chosen == EngineChoice("plumbline", "it supports this file")


def test_a_request_of_a_gguf_file_is_as_long_as_the_cache(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "plumbline.engines")
    given = Settings(models=(("", str(file)),), engine="plumbline")
    block = 16 * describe_model(given, file.parent, file).description.cache_width * 4
    small = msgspec.structs.replace(given, kv_cache_bytes=7 * block)
    assert load(small).engine.info.max_model_len == 112
    assert "the cache holds 112 tokens" in caplog.text
    with pytest.raises(SettingsError, match="--kv-cache-bytes must be at least"):
        load(msgspec.structs.replace(small, max_model_len=200))


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


def test_a_model_runs_on_our_engine_if_that_reads_its_images(tmp_path: Path) -> None:
    folder = make_model("llava", tmp_path)
    chosen = choose_engine(Settings(), folder, None)
    assert chosen == EngineChoice("plumbline", "it supports this model and reads its images")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"do_pad": True}), "utf-8")
    chosen = choose_engine(Settings(), folder, None)
    assert chosen.name == "transformers"
    assert "do_pad" in chosen.reason
    engine = load(Settings(models=(("", str(folder)),), engine="plumbline", device="cpu")).engine
    assert engine.info.modalities == {}


def test_a_model_without_kernels_for_the_device_runs_elsewhere_or_is_refused_with_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AutoConfig.for_model("qwen3_moe", head_dim=640).save_pretrained(tmp_path)
    assert choose_engine(Settings(), tmp_path, None).name == "plumbline"
    find_a_gpu(monkeypatch)
    chosen = choose_engine(Settings(), tmp_path, None)
    assert chosen.name == "transformers"
    assert "no heads of 640" in chosen.reason


def test_a_quantised_model_runs_on_our_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = AutoConfig.for_model("llama").to_dict() | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    expected = EngineChoice("plumbline", "it supports this model and reads its quantised weights")
    assert choose_engine(Settings(), tmp_path, None) == expected
    find_a_gpu(monkeypatch)
    monkeypatch.setattr(engines, "find_spec", lambda _: object())
    assert choose_engine(Settings(), tmp_path, None) == expected


def test_a_model_with_adapters_runs_on_our_engine_if_that_supports_it(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: object())
    adapters = Settings(loras=(("a", "b"),))
    assert choose_engine(adapters, MODEL_DIR, None).name == "plumbline"
    assert choose_engine(adapters, foreign, None).name == "vllm"


@pytest.mark.parametrize("engine", ["plumbline", "transformers"])
def test_the_operator_decides(engine: str, foreign: Path) -> None:
    assert choose_engine(Settings(engine=engine), foreign, None) == EngineChoice(engine, "--engine")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "gguf", "message"),
    [
        (Settings(engine="vllm"), GGUF, "--engine must be llama_cpp, plumbline or auto"),
        (Settings(engine="transformers"), GGUF, "--engine must be llama_cpp, plumbline or auto"),
        (Settings(engine="llama_cpp"), None, "give one as --model"),
        (Settings(engine_args=("n_threads=2",)), None, "--engine-args is an option of llama_cpp, vllm"),
        (
            Settings(engine="llama_cpp", batch_invariant=True),
            GGUF,
            "--batch-invariant is an option of plumbline",
        ),
        (Settings(engine="llama_cpp", lora_dir="."), GGUF, "--lora-dir is an option of plumbline, vllm"),
        (Settings(engine="transformers", lora_dir="."), None, "--lora-dir is an option of plumbline, vllm"),
        (
            Settings(engine="transformers", device_memory=0.5),
            None,
            "--device-memory is an option of plumbline, vllm",
        ),
        (Settings(engine="transformers", block_size=16), None, "--block-size is an option of plumbline"),
        (Settings(engine="llama_cpp", threads=2), GGUF, "--threads is an option of plumbline.*n_threads=N"),
        (Settings(engine="vllm", max_num_batched_tokens=1024), None, "--engine-args max_num_batched_tokens"),
        (Settings(engine="vllm", device="cuda:1"), None, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_does_not_fit_is_refused(settings: Settings, gguf: Path | None, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        choose_engine(settings, MODEL_DIR, gguf)
