"""The engine of a model is chosen by the model or by `--engine`, with a reason; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from support.found_gpus import find_a_gpu
from support.weights.gguf_files import random_reference, write_gguf
from support.weights.model_families import CASES, Case
from support.weights.vision import make_model
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from plumbline.engines.native.models import describe
from plumbline.engines.native.models.families import FAMILIES
from plumbline.engines.native.models.gguf.blocks import BLOCKS
from plumbline.engines.native.models.gguf.description import GgufModel
from plumbline.pocket import MODEL_DIR
from plumbline.pocket.to_gguf import write
from plumbline.server.loading import engines
from plumbline.server.loading.engines import EngineChoice, choose_engine
from plumbline.server.loading.memory import weight_bytes
from plumbline.server.loading.native import memory as native_memory
from plumbline.server.loading.native import native_loader as native_engine
from plumbline.server.loading.native import native_model
from plumbline.server.loading.native.memory import loaded_bytes
from plumbline.server.loading.native.native_model import NativeModel, describe_model, native_dtype
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
