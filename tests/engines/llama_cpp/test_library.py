"""llama.cpp itself: quantised files, parameters, and files that it cannot run. Skipped without llama-cpp-python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import EngineKind, Reference, prompts, started

from plumbline.engines.llama_cpp.library import Library, LlamaCppError, read_options
from plumbline.pocket import MODEL_DIR
from plumbline.pocket.to_gguf import quantise, write

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "pocket.gguf"
    write(MODEL_DIR, path)
    return path


@pytest.mark.parametrize(("kind", "error"), [("Q8_0", 0.05), ("Q4_K_M", 0.6), ("IQ4_NL", 0.6)])
def test_a_quantised_file_is_near_the_model_and_holds_grammars(
    whole: Path, tmp_path: Path, kind: str, error: float
) -> None:
    """`error` bounds the mean difference of the logprobs of the model's own greedy answers."""
    file = tmp_path / f"{kind}.gguf"
    quantise(whole, file, kind)
    assert file.stat().st_size < whole.stat().st_size / 2
    reference = Reference()
    differences: list[float] = []
    with started(EngineKind(kind, model=lambda _: str(file), settings={"dtype": "auto"}), tmp_path) as engine:
        for prompt in prompts(6):
            output = reference.greedy(prompt, 12)
            entries = (
                engine.answer([*prompt, *output], max_tokens=0, prompt_logprobs=0).chunks[0].prompt_logprobs
            )
            assert entries is not None
            table = reference.logprobs([*prompt, *output])[len(prompt) - 1 :]
            for token, entry, row in zip(output, entries[len(prompt) :], table, strict=False):
                assert entry is not None
                differences.append(abs(entry.logprob - row[token]))
        answer = engine.answer(prompts(1)[0], grammar='start: "left" | "right"', temperature=1.0)
        assert answer.reason == "stop"
    assert np.mean(differences) < error


def test_parameters_are_read_by_their_type() -> None:
    given = ["n_gpu_layers=99", "type_k=q8_0", "offload_kqv=false", "rope_freq_base=1e6"]
    assert read_options(given) == {
        "n_gpu_layers": 99,
        "type_k": 8,
        "offload_kqv": False,
        "rope_freq_base": 1e6,
    }


@pytest.mark.parametrize(
    "given", ["n_gpu_layer=9", "n_ctx=9", "n_threads=two", "type_v=f64", "offload_kqv=maybe", "x"]
)
def test_a_wrong_parameter_is_refused_by_name(given: str) -> None:
    with pytest.raises(LlamaCppError, match=given.partition("=")[0]):
        read_options([given])


def test_a_broken_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LlamaCppError, match=r"broken\.gguf"):
        Library(
            tmp_path / "broken.gguf",
            num_running=2,
            max_batch=8,
            max_model_len=None,
            cache_bytes=1 << 20,
            options={},
        )


def test_the_context_is_what_the_cache_holds_unless_it_is_given(whole: Path) -> None:
    # 5 layers x 2 heads x (32 + 32) numbers of 2 bytes.
    small = Library(whole, num_running=4, max_batch=8, max_model_len=None, cache_bytes=1280 * 512, options={})
    assert small.max_model_len == 512
    assert small.num_cells >= 512
    small.close()
    given = Library(whole, num_running=4, max_batch=8, max_model_len=1024, cache_bytes=1, options={})
    assert given.max_model_len == 1024
    assert given.num_cells >= 1024
    given.close()
    given.close()


def test_an_answer_ends_only_with_added_tokens(whole: Path) -> None:
    limits: dict[str, Any] = {"num_running": 1, "max_batch": 8, "max_model_len": 64, "cache_bytes": 1}
    all_of_them = Library(whole, **limits, options={})
    eos = all_of_them.eos_token_ids
    all_of_them.close()
    assert eos
    for markers in (eos, frozenset(), frozenset({0, 10**6}), eos | {0}):
        library = Library(whole, **limits, options={}, markers=markers)
        assert library.eos_token_ids == markers & eos
        library.close()
