"""The engine of a model is chosen by the model or by `--engine`, with a reason; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plumbline.server.loading.engines import EngineChoice, choose_engine
from plumbline.server.settings import Settings, SettingsError, pocket_model

GGUF = Path("model.gguf")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A model that our engine does not have."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "vocab_size": 10}), "utf-8")
    return tmp_path


def test_a_supported_model_runs_on_our_engine() -> None:
    chosen = choose_engine(Settings(), pocket_model(), None)
    assert chosen.name == "plumbline"
    assert chosen.reason


def test_a_gguf_file_runs_on_llama_cpp(tmp_path: Path) -> None:
    assert choose_engine(Settings(), tmp_path, GGUF).name == "llama_cpp"
    assert choose_engine(Settings(engine="llama_cpp"), tmp_path, GGUF).name == "llama_cpp"


def test_another_model_runs_on_transformers_and_the_reason_names_what_is_missing(foreign: Path) -> None:
    chosen = choose_engine(Settings(), foreign, None)
    assert chosen.name == "transformers"
    assert "mamba" in chosen.reason


@pytest.mark.parametrize("engine", ["plumbline", "transformers"])
def test_the_operator_decides(engine: str, foreign: Path) -> None:
    assert choose_engine(Settings(engine=engine), foreign, None) == EngineChoice(engine, "--engine")


@pytest.mark.parametrize(
    ("settings", "gguf", "message"),
    [
        (Settings(engine="plumbline"), GGUF, "runs no GGUF files"),
        (Settings(engine="transformers"), GGUF, "runs no GGUF files"),
        (Settings(engine="llama_cpp"), None, "give one as --model"),
        (Settings(engine_args=("n_threads=2",)), None, "takes no --engine-args"),
        (Settings(batch_invariant=True), GGUF, "--batch-invariant"),
        (Settings(engine="plumbline", loras=(("a", "b"),)), None, "--lora: only vllm"),
        (Settings(engine="transformers", lora_dir="."), None, "--lora-dir: only vllm"),
        (Settings(device_memory=0.5), None, "--device-memory: only vllm"),
    ],
)
def test_what_does_not_fit_is_refused(settings: Settings, gguf: Path | None, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        choose_engine(settings, pocket_model(), gguf)
