"""llama.cpp itself: quantised files, parameters, and files that it cannot run. Skipped without llama-cpp-python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.weights.engines import EngineKind, Reference, prompts, started

from plumbline.engines.llama_cpp.library import LlamaLibrary
from plumbline.engines.llama_cpp.options import LlamaCppError, read_options
from plumbline.engines.llama_cpp.shape import CacheShape
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
    "given",
    ["n_gpu_layer=9", "n_ctx=9", "kv_unified=true", "n_threads=two", "type_v=f64", "offload_kqv=maybe", "x"],
)
def test_a_wrong_parameter_is_refused_by_name(given: str) -> None:
    with pytest.raises(LlamaCppError, match=given.partition("=")[0]):
        read_options([given])


def test_a_broken_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LlamaCppError, match=r"broken\.gguf"):
        LlamaLibrary(
            tmp_path / "broken.gguf",
            num_running=2,
            max_batch=8,
            max_model_len=None,
            cache_bytes=1 << 20,
            options={},
        )


def test_the_context_is_what_the_cache_holds_unless_it_is_given(whole: Path) -> None:
    # 5 layers x 2 heads x (32 + 32) numbers of 2 bytes.
    small = LlamaLibrary(
        whole, num_running=4, max_batch=8, max_model_len=None, cache_bytes=1280 * 512, options={}
    )
    assert small.max_model_len == 512
    assert small.shape.num_cells >= 512
    small.close()
    given = LlamaLibrary(whole, num_running=4, max_batch=8, max_model_len=1024, cache_bytes=1, options={})
    assert given.max_model_len == 1024
    assert given.shape.num_cells >= 1024
    given.close()
    given.close()


@pytest.mark.parametrize("dtype", [{}, {"type_k": 0, "type_v": 0, "flash_attn_type": 0}])
def test_a_sequence_goes_on_in_a_cache_of_another_shape(whole: Path, dtype: dict[str, Any]) -> None:
    """In longer and more sequences, in a pool, and back: its logits are those of a cache that never changed."""
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, 900, 40)]
    limits: dict[str, Any] = {
        "num_running": 8,
        "max_batch": 64,
        "max_model_len": 1024,
        "cache_bytes": 1 << 26,
    }
    library = LlamaLibrary(whole, **limits, options=dtype)
    wanted = _logits(library, 0, tokens, 0)
    library.clear()
    _logits(library, 5, tokens[:10], 0)
    sequence = 5
    for step, shape in enumerate(
        (CacheShape(16, 512, True), CacheShape(4, 2048, streams=False), CacheShape(3, 256, streams=True)),
        start=1,
    ):
        saved = library.save(sequence, 10 * step)
        assert saved is not None
        library.reshape(shape)
        sequence = step - 1
        assert library.restore(sequence, saved)
        found = _logits(library, sequence, tokens[10 * step : 10 * step + 10], 10 * step)
    assert np.abs(found - wanted).max() < 0.05
    library.close()


def test_a_sequence_without_room_is_not_restored(whole: Path) -> None:
    limits: dict[str, Any] = {
        "num_running": 8,
        "max_batch": 512,
        "max_model_len": 1024,
        "cache_bytes": 1 << 26,
    }
    library = LlamaLibrary(whole, **limits, options={})
    _logits(library, 0, [2] * 300, 0)
    saved = library.save(0, 300)
    assert saved is not None
    library.reshape(CacheShape(4, 256, streams=True))
    assert not library.restore(1, saved)
    library.close()


def _logits(library: LlamaLibrary, sequence: int, tokens: list[int], start: int) -> NDArray[np.float32]:
    """The logits after these tokens."""
    positions = list(range(start, start + len(tokens)))
    wanted = [False] * (len(tokens) - 1) + [True]
    assert library.decode(tokens, positions, [sequence] * len(tokens), wanted) == "done"
    return library.logits(1)[0].copy()  # type: ignore[no-any-return]
