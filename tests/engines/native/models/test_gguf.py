"""A GGUF file computes what the model that it was made from computes, or is refused by the name that does not fit.

The laws, for random weights of each architecture:

* In fp32 the logits are those of transformers' model, within 1e-4.
* Quantised weights are what the gguf package dequantises them to, but for rounding in fp32; in fp32 the logits are
  those of that model, within 1e-4.
* Packed for the compiled kernels, types that fit them keep their levels, and their scales and shifts in bf16; others
  stay whole.
* The pocket model gives the same greedy tokens from its folder and from a GGUF file of it.
* A tensor that is missing, not used, of another shape or cut off is named, and so is a key that is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.weights.gguf_files import ARCHITECTURES, TOKENS, random_reference, write_gguf
from support.weights.model_driver import Driver

from plumbline.engines.native.models import UnsupportedModelError, WeightsError, load_model
from plumbline.engines.native.models.gguf import load_gguf, read_model
from plumbline.engines.native.models.gguf.blocks import BLOCKS
from plumbline.pocket import MODEL_DIR
from plumbline.pocket.to_gguf import quantise, write
from plumbline_kernels.cpu.library import UNPACKED, Library, PackedWeight, load

PROMPT = [3 + 7 * index % (TOKENS - 3) for index in range(40)]
"""Longer than the windows of `ARCHITECTURES` and the length that Llama 3 was scaled from."""
WRITTEN = (Kind.Q4_0, Kind.Q5_0, Kind.Q8_0, Kind.Q4_1, Kind.Q5_1, Kind.F16, Kind.BF16)
"""Types that the gguf package writes."""
EXPERTS = ("qwen3moe", "mixtral")
OF_EXPERTS = (Kind.Q4_0, Kind.Q8_0, Kind.Q5_1, Kind.BF16)
"""Levels of both widths, without and with shifts, and whole numbers."""

EARLIER: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "gemma2",
        {"sliding_window": 4096},
        {"lacking": "attention.sliding_window attn_logit_softcapping final_logit_softcapping"},
    ),
    ("gemma2", {}, {"more": {"attention.sliding_window_pattern": 2}}),
    ("mixtral", {}, {"experts_apart": True}),
    ("qwen3moe", {}, {"lacking": "expert_feed_forward_length"}),
    ("qwen3moe", {}, {"more": {"expert_gating_func": 1, "nextn_predict_layers": 0, "expert_group_count": 0}}),
    ("llama", {}, {"more": {"rope.scaling.factor": 0}}),
]
"""Keys and tensors that converters wrote otherwise: a label, changes of its config, changes of `write_gguf`."""

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"without": "blk.1.ffn_up.weight"}, r"missing: blk\.1\.ffn_up\.weight"),
    ({"without": "token_embd.weight"}, r"missing: token_embd\.weight"),
    ({"extra": "blk.0.attn_sinks.weight"}, r"not used: blk\.0\.attn_sinks\.weight"),
    ({"more": {"expert_count": 4}}, "expert_used_count"),
    ({"more": {"expert_used_count": 2}}, "expert_used_count"),
    ({"more": {"attention.sliding_window": 4}}, r"not known for llama: attention\.sliding_window"),
    ({"more": {"attention.value_length": 32}}, "attention.value_length 32"),
    ({"more": {"rope.dimension_count": 16}}, "rope.dimension_count 16"),
    ({"more": {"embedding_length": 128}}, r"token_embd\.weight has shape \[96, 256\].*\[96, 128\]"),
    ({"more": {"block_count": 1}}, r"not used: blk\.1\."),
    ({"more": {"attention.head_count": 0}}, "attention.head_count"),
    ({"more": {"expert_gating_func": 2}}, "expert_gating_func 2"),
    ({"more": {"nextn_predict_layers": 2}}, "nextn_predict_layers"),
]
"""Changes of `write_gguf`, and what the message names."""


def logits(model: Any) -> torch.Tensor:
    driver = Driver(model)
    return driver.step([(driver.add(PROMPT, 64), len(PROMPT))])


@torch.no_grad()
def expected(reference: Any) -> torch.Tensor:
    found: torch.Tensor = reference(torch.tensor([PROMPT])).logits[0]
    return found


def read(path: Path, **changes: Any) -> Any:
    return load_gguf(read_model(path), **{"dtype": torch.float32, **changes})


@pytest.mark.parametrize("label", ARCHITECTURES)
def test_logits_are_those_of_transformers(tmp_path: Path, label: str) -> None:
    reference = random_reference(label)
    write_gguf(tmp_path / "a.gguf", reference, label)
    torch.testing.assert_close(logits(read(tmp_path / "a.gguf")), expected(reference), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("label", "config", "changes"), EARLIER)
def test_files_of_earlier_converters_are_read(
    tmp_path: Path, label: str, config: dict[str, Any], changes: dict[str, Any]
) -> None:
    reference = random_reference(label, **config)
    write_gguf(tmp_path / "a.gguf", reference, label, **changes)
    torch.testing.assert_close(logits(read(tmp_path / "a.gguf")), expected(reference), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("label", "kind"),
    [*(("llama", kind) for kind in WRITTEN), *((label, kind) for label in EXPERTS for kind in OF_EXPERTS)],
    ids=str,
)
def test_quantised_weights_compute_what_they_stand_for(tmp_path: Path, label: str, kind: Kind) -> None:
    reference = random_reference(label)
    write_gguf(tmp_path / "a.gguf", reference, label, kind)
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            if weight.dim() > 1 and not name.endswith("mlp.gate.weight"):  # Routers are never rounded.
                stored = gguf.quants.quantize(weight.numpy(), kind)
                weight.copy_(torch.from_numpy(gguf.quants.dequantize(stored, kind)))
    torch.testing.assert_close(logits(read(tmp_path / "a.gguf")), expected(reference), atol=1e-4, rtol=0)


@given(st.sampled_from(sorted(BLOCKS)), st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 3))
def test_blocks_are_unpacked_as_by_the_gguf_package(kind: int, seed: int, rows: int, count: int) -> None:
    blocks = BLOCKS[kind]
    data = np.random.default_rng(seed).integers(0, 120, (rows, count * blocks.size), np.uint8)
    wanted = gguf.quants.dequantize(data, Kind(kind))
    weight = blocks.read(torch.from_numpy(data).flatten(), (rows, count * blocks.inputs))
    assert (
        -(1 << blocks.bits - 1) <= int(weight.levels.min()) <= int(weight.levels.max()) < 1 << blocks.bits - 1
    )
    np.testing.assert_allclose(
        weight.dequantised(torch.float32).numpy(), wanted, rtol=0, atol=1e-6 * np.abs(wanted).max()
    )


@example(kind=Kind.Q5_0, seed=0, rows=700, count=32)  # Enough for two threads.
@given(st.sampled_from(sorted(UNPACKED)), st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 3))
def test_compiled_kernels_unpack_blocks_as_torch_does(kind: int, seed: int, rows: int, count: int) -> None:
    blocks, shape = BLOCKS[kind], (rows, count * BLOCKS[kind].inputs)
    # All bytes: scales are infinite, no numbers or subnormal as well.
    data = np.random.default_rng(seed).integers(0, 256, rows * count * blocks.size, np.uint8)
    wanted = blocks.read(torch.from_numpy(data), shape)
    found = blocks.read(torch.from_numpy(data), shape, load())
    assert torch.equal(found.levels, wanted.levels)
    assert (found.shifts is None) == (wanted.shifts is None)
    for name in ("scales", "shifts"):
        if (expected := getattr(wanted, name)) is not None:
            torch.testing.assert_close(getattr(found, name), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("label", "kind"),
    [*(("llama", kind) for kind in WRITTEN), *((label, Kind.Q4_0) for label in EXPERTS)],
    ids=str,
)
def test_types_that_fit_the_kernels_keep_their_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, kind: Kind
) -> None:
    packed: list[tuple[torch.Tensor, int, Any, Any]] = []
    pack: Callable[..., PackedWeight] = Library.pack

    def keep(
        self: Library,
        weight: torch.Tensor,
        bits: int = 0,
        scales: Any = None,
        shifts: Any = None,
        **rounding: Any,
    ) -> PackedWeight:
        packed.append((weight, bits, scales, shifts))
        return pack(self, weight, bits, scales, shifts, **rounding)

    monkeypatch.setattr(Library, "pack", keep)
    # Tokens take all experts: with rounded inputs, near logits of a router would choose others.
    reference = random_reference(label, **({"num_experts_per_tok": 3} if label in EXPERTS else {}))
    write_gguf(tmp_path / "a.gguf", reference, label, kind)
    narrow = logits(read(tmp_path / "a.gguf", library=load()))
    fits = int(kind) in BLOCKS
    routers = [weight for weight, *_ in packed if weight.shape[0] == 3]
    packed = [each for each in packed if each[0].shape[0] > 3]
    assert {bits for _, bits, _, _ in packed} == {BLOCKS[int(kind)].bits if fits else 0}
    experts = 3 if label in EXPERTS else 1
    # Of an output layer that is not the embedding both are packed, if they are quantised.
    tables = 1 + (fits and not reference.config.tie_word_embeddings)
    assert (len(packed), len(routers)) == (2 * (2 + 2 * experts) + tables, 2 * (label in EXPERTS))
    if fits:
        for weight, bits, _, _ in packed:
            assert weight.dtype == torch.int8
            assert int(weight.abs().max()) <= 1 << bits - 1
    whole = logits(read(tmp_path / "a.gguf", bits=0))
    # Inputs are rounded to 8 bits on the way, and scales to bf16.
    assert (narrow - whole).abs().max() < (0.15 if fits else 1e-4) * whole.abs().max()


def greedy(model: Any, count: int = 24) -> list[int]:
    driver = Driver(model)
    sequence = driver.add([*range(300, 330)], 128)
    found = driver.step([(sequence, 30)])[-1:]
    for _ in range(count):
        sequence.tokens.append(int(found[-1].argmax()))
        found = driver.step([(sequence, 1)])
    return sequence.tokens[30:]


def test_the_pocket_model_gives_the_same_greedy_tokens_from_a_file(tmp_path: Path) -> None:
    write(MODEL_DIR, tmp_path / "pocket.gguf")
    folder = load_model(MODEL_DIR, torch.float32, library=load())
    file = read(tmp_path / "pocket.gguf", library=load())
    assert file.description.eos_token_ids == folder.description.eos_token_ids
    assert greedy(file) == greedy(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    shape = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1}
    write_gguf(path, random_reference("llama", **shape), "llama", Kind.Q8_0)
    return path


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_what_does_not_fit_is_refused_by_its_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_gguf(tmp_path / "a.gguf", random_reference("llama"), **{"label": "llama", **changes})
    with pytest.raises((UnsupportedModelError, WeightsError), match=message):
        read(tmp_path / "a.gguf")


@settings(max_examples=40)
@given(st.data())
def test_a_damaged_file_is_refused_or_read_and_never_crashes(small: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        place, value = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 255))
        content[place] = value
    path = small.with_name("damaged.gguf")
    path.write_bytes(content)
    with contextlib.suppress(UnsupportedModelError, WeightsError):
        read(path)


def theirs(path: Path) -> torch.Tensor:
    """Return the logits of llama.cpp, in fp32 but for its products of quantised weights."""
    llama = pytest.importorskip("llama_cpp")
    model = llama.Llama(
        str(path),
        n_ctx=128,
        logits_all=True,
        verbose=False,
        n_threads=1,
        type_k=0,
        type_v=0,
        flash_attn=False,
    )
    model.eval(PROMPT)
    return torch.from_numpy(np.array(model.scores[: len(PROMPT)], np.float32))


@pytest.mark.long
@pytest.mark.parametrize("label", ARCHITECTURES)
def test_logits_are_those_of_llama_cpp(tmp_path: Path, label: str) -> None:
    write_gguf(tmp_path / "a.gguf", random_reference(label), label)
    # llama.cpp reads GELU from a table in fp16.
    atol = 2e-2 if "gemma" in label else 1e-4
    found = logits(read(tmp_path / "a.gguf"))
    torch.testing.assert_close(found, theirs(tmp_path / "a.gguf"), atol=atol, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "IQ4_XS"])
def test_logits_of_quantised_files_are_near_those_of_llama_cpp(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("llama_cpp")
    write_gguf(tmp_path / "a.gguf", random_reference("qwen3"), "qwen3")
    quantise(tmp_path / "a.gguf", tmp_path / "b.gguf", kind)
    wanted = theirs(tmp_path / "b.gguf")
    for library in (None, load()):
        found = logits(read(tmp_path / "b.gguf", library=library))
        # llama.cpp rounds inputs to 8 bits, and so do the compiled kernels, in other groups.
        assert (found - wanted).abs().max() < 0.06 * wanted.abs().max()
