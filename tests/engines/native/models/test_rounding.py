"""Laws of rounding to 4 bits: a weight has 5 bits at most, scales included; fitted scales err less than plain ones.

The loss that a load measures is that of the model as a whole, and too large a one is refused.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.weights.model_families import CASES, Case
from transformers import AutoModelForCausalLM, AutoTokenizer

from plumbline.engines.native.models import Transformer, describe, load_model
from plumbline.engines.native.models.description import Attention, Dense, LayerDescription
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.loading.rounding import Rounding, roundings
from plumbline.engines.native.models.loading.rounding_loss import TEXTS, losses_of_rounding, predictions
from plumbline.engines.native.models.loading.source import StreamedStacks
from plumbline.server.loading.native import native_loader
from plumbline.server.settings import OptionError, Settings
from plumbline_kernels.cpu.library import Library, PackedWeight, load

_POCKET = Path(native_loader.__file__).parents[3] / "pocket" / "model"
_TEXTS = {"first": [*range(5, 105)], "second": [*range(300, 200, -1)]}
_FACTOR = 16
"""Bits of a scale, and of a shift."""


@cache
def _pocket() -> Transformer:
    return load_model(_POCKET, library=load())


def bits_of(library: Library, outputs: int, inputs: int, rounding: Rounding) -> float:
    """Pack some rows as a layer does, and return what its matrix [outputs, inputs] takes."""
    assert rounding.bits is not None
    packed: PackedWeight = library.pack(torch.ones(16, inputs), rounding.bits, shifted=rounding.shifted)
    factors = 1 + (packed.shifts is not None)
    return outputs * inputs * (packed.bits + _FACTOR * factors / packed.group)


@given(
    st.integers(1, 24),
    st.integers(0, 4),
    st.sampled_from([32, 64, 128]),
    st.integers(1, 40),
    st.integers(1, 200),
)
def test_a_layer_has_five_bits_a_weight_at_most(
    kv_heads: int, doublings: int, head_dim: int, hidden: int, width: int
) -> None:
    heads, hidden, width = kv_heads << doublings, 64 * hidden, 64 * width
    layer = LayerDescription(
        mixer=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, rope=None),
        feed_forward=Dense(width=width, activation="silu"),
    )
    library, plain = load(), Rounding(4)
    of_attention, down = roundings(4, layer, hidden)
    total = (
        bits_of(library, head_dim * (heads + 2 * kv_heads), hidden, of_attention)
        + bits_of(library, hidden, heads * head_dim, plain)
        + bits_of(library, 2 * width, hidden, plain)
        + bits_of(library, hidden, width, down)
    )
    weights = hidden * head_dim * 2 * (heads + kv_heads) + 3 * hidden * width
    assert total <= 5 * weights


def test_other_bits_are_the_same_for_all() -> None:
    layer = LayerDescription(
        mixer=Attention(heads=4, kv_heads=1, head_dim=64, rope=None),
        feed_forward=Dense(width=1024, activation="silu"),
    )
    assert {*roundings(8, layer, 256), *roundings(8, layer, 256)} == {Rounding(8)}
    assert {*roundings(None, layer, 256)} == {Rounding(None)}
    assert [each.bits for each in roundings(4, layer, 256)] == [6, 4]


@pytest.mark.parametrize("bits", [6, 5, 4])
def test_fitted_scales_err_less_than_those_of_the_largest_number(bits: int) -> None:
    weight = torch.randn(96, 192, generator=torch.Generator().manual_seed(1))
    weight[3], weight[4, :64] = 0.0, 7.25
    packed = load().pack(weight, bits, shifted=False)
    assert packed.shifts is None
    rounded = load().logits(torch.eye(192), packed, None).t().unflatten(1, (-1, packed.group))
    groups = weight.unflatten(1, (-1, packed.group))
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    scales = -largest / (1 << bits - 1)
    levels = (groups / torch.where(scales == 0, 1.0, scales)).round()
    even = levels.clamp(-(1 << bits - 1), (1 << bits - 1) - 1) * scales
    ours, theirs = ((each - groups).square().mean().item() for each in (rounded, even))
    assert math.isfinite(ours)
    assert ours < 0.95 * theirs
    assert (rounded.flatten(1)[3] == 0).all()
    assert (rounded[4, 0] - 7.25).abs().max() < 0.05


@given(
    st.lists(st.lists(st.floats(-30, 30, width=32), min_size=5, max_size=5), min_size=2, max_size=4),
    st.floats(-9, 9, width=32),
)
def test_the_loss_is_1_for_the_same_predictions_and_never_less(rows: list[list[float]], shift: float) -> None:
    logits = torch.tensor(rows)
    found = losses_of_rounding(
        {"same": logits, "other": logits}, {"same": logits + shift, "other": logits.flip(0)}
    )
    assert found["same"] == pytest.approx(1, abs=1e-4)
    assert found["other"] >= 1 - 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_load_measures_the_loss_of_the_whole_model(dtype: torch.dtype) -> None:
    measured = load_model(_POCKET, dtype, library=load(), bits=4, texts=_TEXTS)
    whole, rounded = load_model(_POCKET, dtype, bits=0), load_model(_POCKET, dtype, library=load(), bits=4)
    assert rounded.rounding_losses == {}
    of_whole, of_rounded = predictions(whole, _TEXTS), predictions(rounded, _TEXTS)
    assert measured.rounding_losses == losses_of_rounding(of_whole, of_rounded)
    assert measured.rounding_losses.keys() == _TEXTS.keys()
    assert min(measured.rounding_losses.values()) > 1
    for kind, logits in predictions(measured, _TEXTS).items():
        assert torch.equal(logits, of_rounded[kind])


def _is_of_attention_and_dense_blocks(case: Case) -> bool:
    return all(
        isinstance(layer.mixer, Attention) and isinstance(layer.feed_forward, Dense)
        for layer in describe(case.config().to_dict()).layers
    )


OTHERS = [
    pytest.param(case, marks=pytest.mark.long if case.is_long else (), id=case.name)
    for case in CASES
    if case.is_compiled and not _is_of_attention_and_dense_blocks(case)
]


@pytest.mark.parametrize("case", OTHERS)
def test_experts_and_states_are_measured_as_they_run(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(case.config()).save_pretrained(tmp_path)
    texts = {"first": [*range(1, 96)], "second": [*range(60, 20, -1)], "third": [7]}
    whole, rounded = (
        load_model(tmp_path, torch.float32, library=at, bits=bits) for at, bits in ((None, 0), (load(), 4))
    )
    assert rounded.library is not None
    expected = losses_of_rounding(predictions(whole, texts), predictions(rounded, texts))
    assert max(expected.values()) > 1
    found = load_model(tmp_path, torch.float32, library=load(), bits=4, texts=texts).rounding_losses
    assert found == expected


@pytest.mark.parametrize("case", OTHERS)
def test_each_text_begins_with_a_new_state(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(case.config()).save_pretrained(tmp_path)
    model = load_model(tmp_path, torch.float32, library=load(), bits=4)
    texts = {"first": [*range(1, 40)], "second": [*range(60, 20, -1)]}
    together = predictions(model, texts)
    for kind, ids in texts.items():
        assert torch.equal(together[kind], predictions(model, {kind: ids})[kind])


def test_experts_of_one_layer_are_in_memory_at_a_time() -> None:
    stacks, made = StreamedStacks(), weakref.WeakSet[Linear]()

    class Watched(Linear):
        __slots__ = ("__weakref__",)

    def read() -> Iterator[Linear]:
        for _ in range(4):
            layer = Watched(torch.ones(3, 2))
            made.add(layer)
            yield layer

    layers = [
        stacks.stack(f"{index}.{name}", 4, (3, 2), read) for index in range(3) for name in ("gate_up", "down")
    ]
    assert not made
    for first, second in zip(layers[::2], layers[1::2], strict=True):
        for expert in (0, 2, 3):
            for stack in (first, second):
                assert stack[expert](torch.ones(1, 2)).tolist() == [[2.0] * 3]
        assert len(made) <= 8


@given(st.lists(st.lists(st.integers(5, 1000), min_size=1, max_size=40), min_size=1, max_size=4))
def test_texts_are_measured_as_if_each_were_alone(texts: list[list[int]]) -> None:
    model = _pocket()
    together = predictions(model, {str(index): ids for index, ids in enumerate(texts)})
    for index, ids in enumerate(texts):
        assert torch.equal(together[str(index)], predictions(model, {"": ids})[""])


@pytest.mark.parametrize(
    ("bits", "texts"), [(8, [[5, 6]]), (None, [[5, 6]]), (4, []), (4, [[5], []]), (4, [[5, 10**6]])]
)
def test_what_cannot_be_measured_is_not(bits: int | None, texts: list[list[int]]) -> None:
    named = {str(index): ids for index, ids in enumerate(texts)}
    assert load_model(_POCKET, library=load(), bits=bits, texts=named).rounding_losses == {}


def test_a_model_that_four_bits_make_worse_with_any_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(quantization="int4", store="none")

    def losses() -> Mapping[str, float]:
        engine = native_loader.build_native(
            settings, "model", _POCKET, None, lambda *_: None, lambda _: [], texts=_TEXTS
        )
        return engine.info.rounding_losses

    # The model does not know these texts.
    with pytest.raises(OptionError, match=r"--quantization is int4"):
        losses()
    monkeypatch.setattr(native_loader, "_MOST_LOSS", math.inf)
    found = losses()
    assert found.keys() == _TEXTS.keys()
    worst = max(found, key=found.__getitem__)
    monkeypatch.setattr(native_loader, "_MOST_LOSS", found[worst])
    assert losses() == found
    monkeypatch.setattr(native_loader, "_MOST_LOSS", found[worst] - 0.001)
    with pytest.raises(
        OptionError,
        match=rf"--quantization is int4, .* the perplexity .* \({worst}\), .*: give int8, or a GGUF file",
    ):
        losses()


@pytest.mark.parametrize(
    ("texts", "reason"),
    [({}, "no tokens"), ({"a": [1], "b": []}, "no tokens"), ({"a": [1, 10**6]}, "the token 1000000")],
)
def test_a_model_is_not_rounded_to_four_bits_unmeasured(texts: Mapping[str, list[int]], reason: str) -> None:
    settings = Settings(quantization="int4", store="none")
    with pytest.raises(
        OptionError, match=rf"--quantization is int4, .* cannot be measured: .*{reason}.*; give int8"
    ):
        native_loader.build_native(
            settings, "model", _POCKET, None, lambda *_: None, lambda _: [], texts=texts
        )


def test_the_built_in_texts_are_long_enough_to_be_cut() -> None:
    model = load_model(_POCKET)
    tokenizer = AutoTokenizer.from_pretrained(_POCKET)
    texts = {kind: tokenizer(text)["input_ids"] for kind, text in TEXTS.items()}
    assert {len(logits) for logits in predictions(model, texts).values()} == {64}
