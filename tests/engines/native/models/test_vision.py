"""Models of images and text compute what transformers computes, from a folder that transformers wrote.

The laws, for random weights, each tower and each family of text:

* The rows of an image are those that transformers puts into the text, within 1e-4.
* A prompt with images, whole, in chunks that cut an image, in a batch and after cached blocks inside of an image, has
  the logits of transformers within 1e-4, and 32 greedy tokens.
* An adapter changes the text.
* Names of tensors of older checkpoints are read, and what is not known is refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.weights.adapters import merge, write_adapter
from support.weights.model_driver import Driver, Sequence
from support.weights.model_families import SMALL
from support.weights.reference_images import reference_images, reference_rows
from support.weights.vision_cases import (
    CASES,
    CLIP,
    GEMMA3,
    GEMMA4_PADDED,
    IMAGE,
    PIXTRAL,
    POOLED,
    SIGLIP,
    TILES,
    Case,
)

from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.models import Transformer, UnsupportedModelError, describe, load_model
from plumbline.engines.native.models.adapters.adapter_config import AdapterError
from plumbline.engines.native.models.vision import UnwantedError
from plumbline.engines.native.models.vision.families import read_vision
from plumbline.engines.native.models.vision.families.qwen import QwenVision
from plumbline.engines.native.models.vision.families.square import SquareVision
from plumbline.engines.native.models.vision.interface import Vision
from plumbline.engines.native.models.vision.layout import ImageLayout
from plumbline.engines.native.models.vision.weights import TowerWeights
from plumbline.engines.request import PlacedImage
from plumbline_kernels.cpu.library import load
from plumbline_kernels.lora import AdapterRows

pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@dataclass
class Pair:
    """The same random weights in transformers and in ours."""

    reference: Any
    model: Transformer
    vision: Vision
    sizes: tuple[tuple[int, int], ...]

    def size(self, seed: int) -> tuple[int, int]:
        return self.sizes[seed % len(self.sizes)]

    def pixels(self, seed: int) -> torch.Tensor:
        return torch.randn(3, *self.size(seed), generator=torch.Generator().manual_seed(seed))

    def layout(self, seed: int) -> ImageLayout:
        return self.vision.layout(*self.size(seed), lambda text: (len(text),))

    @property
    def is_apart(self) -> bool:
        """Whether transformers takes images without tokens between them for one."""
        return self.vision.whole or isinstance(self.vision, QwenVision)

    def rows(self, seed: int) -> torch.Tensor:
        assert self.model.vision is not None
        return self.model.vision.encode(self.pixels(seed))

    def driver(self, block_size: int = 16) -> Driver:
        driver = Driver(self.model, block_size=block_size)
        driver.whole_images = self.vision.whole
        return driver

    def up_to(self, sequence: Sequence, place: int) -> int:
        """How many tokens to compute up to a place, or to the start or the end of an image that must be whole."""
        done = sequence.num_computed_tokens
        place = min(place, len(sequence.tokens))
        for image in sequence.images:
            if image.whole and image.start < place < image.end:
                place = image.start if image.start > done else image.end
        return place - done

    def sequence(self, driver: Driver, parts: list[int | list[int]], max_len: int) -> Sequence:
        """Add a prompt: a number stands for the picture of that seed."""
        tokens: list[int] = []
        images = []
        for part in parts:
            if isinstance(part, int):
                layout, rows = self.layout(part), self.rows(part)
                images += [
                    PlacedImage(len(tokens) + each.first, each.of(rows), b"", self.vision.whole, each.grid)
                    for each in layout.parts
                ]
                tokens += layout.token_ids
            else:
                tokens += part
        sequence = driver.add(tokens, max_len)
        sequence.images = images
        return sequence

    @torch.inference_mode()
    def expected(self, sequence: Sequence, parts: list[int | list[int]]) -> torch.Tensor:
        """The logits of transformers for the computed tokens of a sequence; none of the drawn ones is an image's."""
        seeds = [part for part in parts if isinstance(part, int)]
        computed = sequence.tokens[: sequence.num_computed_tokens]
        ids = torch.tensor([computed])
        images = reference_images(self.vision, [self.pixels(seed) for seed in seeds])
        if self.is_apart:
            name = "token_type_ids" if isinstance(self.vision, SquareVision) else "mm_token_type_ids"
            images[name] = (ids == IMAGE).long()
        logits: torch.Tensor = self.reference(ids, **images, use_cache=False).logits[0]
        return logits.float()

    def assert_same(self, sequence: Sequence, parts: list[int | list[int]]) -> None:
        ours = torch.stack(sequence.logits)
        theirs = self.expected(sequence, parts)[-len(ours) :]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return made(request.param, tmp_path_factory.mktemp(request.param.name))


def made(case: Case, folder: Path) -> Pair:
    """Save a random model with transformers, and load it."""
    torch.manual_seed(len(case.name))
    config = case.config()
    config._attn_implementation = "eager"
    reference: Any = transformers.AutoModelForImageTextToText.from_config(config).eval()
    for name, parameter in reference.named_parameters():
        if "norm" in name or "ln_q" in name:
            of_text = "language" in name or "soft_emb_norm" in name
            parameter.data.normal_(case.random[not of_text], 0.3)
        elif any(part in name for part in ("vision", "visual", "projector", "tokens_per_layer")):
            parameter.data.normal_(0.0, 0.3)
    for name, buffer in reference.named_buffers():
        if name.endswith(("_min", "_max", "std_bias", "std_scale")):
            buffer.normal_(0.0, 0.3).abs_().mul_(-1.0 if name.endswith("_min") else 1.0)
    # No drawn token is the placeholder, which transformers would take for an image when all is computed at once.
    reference.get_output_embeddings().weight.data[IMAGE] = 0.0
    reference.save_pretrained(folder)
    fields = json.loads((folder / "config.json").read_text())
    vision = read_vision(fields, describe(fields))
    library = load() if case.is_compiled else None
    model = load_model(folder, torch.float32, library=library, vision=vision)
    assert (model.library is not None) == case.is_compiled
    return Pair(reference, model, vision, case.sizes)


def text(length: int, seed: int) -> list[int]:
    return torch.randint(0, IMAGE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def test_the_rows_of_an_image_are_those_of_transformers(pair: Pair) -> None:
    for seed in range(len(pair.sizes)):
        found = reference_rows(pair.reference, pair.vision, pair.pixels(seed))
        rows = pair.rows(seed)
        assert len(rows) == pair.layout(seed).num_rows
        torch.testing.assert_close(rows, found, atol=1e-4, rtol=0)


def test_a_tower_runs_in_a_type_that_the_processor_multiplies(tmp_path: Path) -> None:
    pair = made(CASES[0], tmp_path)
    for kind in (torch.bfloat16, torch.float16):
        model = load_model(tmp_path, kind, vision=pair.vision)
        assert model.vision is not None
        rows = model.vision.encode(pair.pixels(1))
        assert rows.dtype == kind
        assert model.vision.row_bytes * len(rows) == rows.nbytes
        wanted = pair.rows(1)
        assert (rows.float() - wanted).norm() < 4 * torch.finfo(kind).eps * wanted.norm()


def test_an_image_that_is_no_longer_wanted_is_given_up_between_layers(pair: Pair) -> None:
    asked: list[bool] = []

    def is_wanted() -> bool:
        asked.append(len(asked) < 1)
        return asked[-1]

    assert pair.model.vision is not None
    with pytest.raises(UnwantedError):
        pair.model.vision.encode(pair.pixels(1), is_wanted)
    assert asked == [True, False]


def test_prompts_whole_cut_and_after_cached_blocks_have_the_logits_of_transformers(pair: Pair) -> None:
    driver = pair.driver(block_size=8)
    parts: list[int | list[int]] = [text(5, 1), 1, text(3, 2), 2, text(4, 3)]
    whole, cut = (pair.sequence(driver, parts, 64) for _ in range(2))
    other_parts: list[int | list[int]] = [3, text(2, 4)]
    other = pair.sequence(driver, other_parts, 32)
    second = cut.images[1].start
    driver.step([(whole, len(whole.tokens))])
    # The cuts are inside of both images, beside a decode and another prompt.
    whole.tokens.append(int(whole.logits[-1][:IMAGE].argmax()))
    driver.step([(whole, 1), (cut, pair.up_to(cut, 8)), (other, pair.up_to(other, 3))])
    driver.step([(cut, pair.up_to(cut, 9)), (other, pair.up_to(other, 99))])
    driver.step([(cut, pair.up_to(cut, second + 3))])
    driver.step([(cut, pair.up_to(cut, 99))])
    # A block is known, which ends within the first image; the second one is another.
    forked_parts: list[int | list[int]] = [*parts[:3], 4, text(6, 5)]
    if pair.model.description.state_bytes(1):
        return  # States are those of the end of a sequence.
    wanted = pair.sequence(driver, forked_parts, 8)
    forked = driver.fork(whole, wanted.tokens[:8] + [0] * 8, 64)
    assert forked.num_computed_tokens == 8
    forked.tokens, forked.images = wanted.tokens, wanted.images
    driver.step([(forked, pair.up_to(forked, 99))])
    for sequence, its_parts in ((whole, parts), (cut, parts), (other, other_parts), (forked, forked_parts)):
        assert sequence.num_computed_tokens == len(sequence.tokens)
        pair.assert_same(sequence, its_parts)


def test_sequences_decoded_together_get_the_greedy_tokens_of_transformers(pair: Pair) -> None:
    driver = pair.driver()
    between: list[int | list[int]] = [text(1, 9)] if pair.is_apart else []
    prompts: list[list[int | list[int]]] = [[text(4, 1), 1, text(2, 2)], [2, *between, 3, text(5, 3)]]
    sequences = [pair.sequence(driver, parts, 16 * 8) for parts in prompts]
    sizes = [len(sequence.tokens) for sequence in sequences]
    driver.step([(sequence, len(sequence.tokens)) for sequence in sequences])
    driver.decode(sequences, 32)
    for parts, size, sequence in zip(prompts, sizes, sequences, strict=True):
        # If each token is the reference's choice after the ones before it, all are what it would have generated.
        choices = pair.expected(sequence, parts).argmax(-1).tolist()
        assert sequence.tokens[size:] == choices[size - 1 : -1]


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
def test_an_adapter_changes_the_text_and_not_the_images(case: Case, tmp_path: Path) -> None:
    """With images, logits are those of transformers with the adapter merged; one of a tower is refused by name."""
    pair = made(case, tmp_path / "model")
    targets = tuple(
        f"language_model.layers.{n}.{module}"
        for n in (0, 2)
        for module in ("mlp.up_proj", "self_attn.q_proj")
    )
    folder = write_adapter(tmp_path / "a", pair.reference, targets)
    placed = (table := AdapterTable(pair.model, capacity=1, max_rank=8)).put(table.prepare(folder))
    driver = pair.driver()
    parts: list[int | list[int]] = [text(5, 1), 1, text(3, 2)]
    plain, sequence = (pair.sequence(driver, parts, 40) for _ in range(2))
    size = len(sequence.tokens)
    adapted = AdapterRows(torch.arange(size, 2 * size), (placed.slot,), (0, size))
    driver.step([(plain, size), (sequence, size)], adapters=adapted)
    pair.assert_same(plain, parts)
    merge(pair.reference, folder)
    pair.assert_same(sequence, parts)
    assert (torch.stack(plain.logits) - torch.stack(sequence.logits)).abs().max() > 0.05
    towers = write_adapter(tmp_path / "t", pair.reference, ("vision_tower.encoder.layers.0.mlp.fc1",))
    with pytest.raises(AdapterError, match="vision_tower"):
        table.prepare(towers)


@pytest.mark.parametrize("names", [
    {"model.vision_tower.": "vision_tower.vision_model.", "model.multi_modal_projector.": "multi_modal_projector.",
     "model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    {"model.vision_tower.": "model.vision_tower.vision_model."},
])  # fmt: skip
def test_the_names_of_released_checkpoints_are_read(names: dict[str, str], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    pair = made(CASES[0], tmp_path)
    path = tmp_path / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(path).items():
        prefix = next((prefix for prefix in names if name.startswith(prefix)), "")
        renamed[names.get(prefix, "") + name.removeprefix(prefix)] = tensor
    extra = "model.vision_tower." if len(names) == 1 else "vision_tower.vision_model."
    for added, problem in (({}, ""), ({f"{extra}surprise.weight": torch.ones(2)}, "surprise")):
        save_file(renamed | added, path)
        if problem:
            with pytest.raises(ValueError, match=problem):
                load_model(tmp_path, torch.float32, vision=pair.vision)
        else:
            again = load_model(tmp_path, torch.float32, vision=pair.vision)
            assert again.vision is not None
            assert torch.equal(again.vision.encode(pair.pixels(1)), pair.rows(1))


def test_bounds_of_layers_that_are_not_clipped_are_left_alone(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    pair = made(next(case for case in CASES if case.family == "gemma4"), tmp_path)
    path = tmp_path / "model.safetensors"
    bound = "model.vision_tower.encoder.layers.2.mlp.up_proj.input_max"
    save_file(load_file(path) | {bound: torch.zeros(())}, path)
    again = load_model(tmp_path, torch.float32, vision=pair.vision)
    assert again.vision is not None
    assert torch.equal(again.vision.encode(pair.pixels(1)), pair.rows(1))


@pytest.mark.parametrize(("change", "problem"), [
    ({"vision_config": CLIP | {"surprise": 1}}, "surprise"),
    ({"vision_config": CLIP | {"model_type": "pixtral"}}, "pixtral"),
    ({"vision_config": CLIP | {"hidden_act": "relu"}}, "hidden_act"),
    ({"vision_config": CLIP | {"num_channels": 1}}, "num_channels"),
    ({"vision_feature_layer": 9}, "vision_feature_layer"),
    ({"vision_feature_select_strategy": "half"}, "vision_feature_select_strategy"),
    ({"projector_hidden_act": "relu"}, "projector_hidden_act"),
    ({"image_token_index": 4000}, "image_token_index"),
    ({"text_config": {**SMALL, "model_type": "granite", "embedding_multiplier": 2.0}}, "granite"),
    ({"model_type": "mistral3"}, "pixtral"),
    ({"vision_config": PIXTRAL | {"head_dim": 8}, "vision_feature_select_strategy": "full"}, "head_dim"),
    ({"vision_config": PIXTRAL | {"rope_parameters": {"rope_type": "yarn"}}, "vision_feature_select_strategy": "full"},
     "yarn"),
    ({"model_type": "mistral3", "vision_config": PIXTRAL, "vision_feature_layer": [0, 1]}, "one layer"),
    ({"model_type": "gemma4", "vision_config": None}, "vision_config"),
    ({"model_type": "gemma4", "vision_config": SIGLIP}, "gemma4_vision"),
    ({"model_type": "gemma4", "vision_config": POOLED | {"num_key_value_heads": 1}}, "num_key_value_heads"),
    ({"model_type": "gemma4", "vision_config": POOLED | {"head_dim": 18}}, "head_dim"),
    ({"model_type": "gemma4", "vision_config": POOLED, "text_config": GEMMA4_PADDED}, "pad_token_id"),
    ({"model_type": "llama4", "vision_config": SIGLIP}, "llama4_vision_model"),
    ({"model_type": "llama4", "vision_config": TILES | {"pixel_shuffle_ratio": 0.3}}, "pixel_shuffle_ratio"),
    ({"model_type": "llama4", "vision_config": TILES | {"intermediate_size": 64}}, "intermediate_size"),
    ({"model_type": "llama4", "vision_config": TILES | {"vision_output_dim": 64}}, "vision_output_dim"),
    (GEMMA3 | {"mm_tokens_per_image": 5}, "mm_tokens_per_image"),
    (GEMMA3 | {"mm_tokens_per_image": 16}, "sliding_window"),
    (GEMMA3 | {"vision_config": CLIP}, "siglip_vision_model"),
    (GEMMA3 | {"boi_token_index": 4000}, "boi_token_index.* 4000"),
    (GEMMA3 | {"eoi_token_index": 4000}, "eoi_token_index.* 4000"),
    ({"model_type": "gemma4", "vision_config": POOLED, "image_token_id": IMAGE, "boi_token_id": 4000},
     "boi_token_id"),
    ({"model_type": "gemma4", "vision_config": POOLED | {"rms_norm_eps": -1.0}}, "rms_norm_eps"),
    ({"model_type": "gemma4", "vision_config": []}, "vision_config"),
])  # fmt: skip
def test_what_is_not_known_of_images_is_refused_by_name(change: dict[str, Any], problem: str) -> None:
    config = json.loads(CASES[0].config().to_json_string()) | {"model_type": "llava"}
    assert read_vision(config, describe(config)).layout(30, 30, lambda _: ()).num_rows == 16
    config |= change
    if change.get("model_type") == "gemma3":
        right = config | GEMMA3
        assert read_vision(right, describe(right)).whole
    with pytest.raises(UnsupportedModelError, match=f"(?s)images.*{problem}"):
        read_vision(config, describe(config))


def test_a_tower_with_products_apart_has_its_biases() -> None:
    """Gemma 4's, the only family whose products are apart, has none; they would be left out without a word."""
    config: dict[str, Any] = {"model_type": "llava", "vision_config": SIGLIP, "image_token_index": IMAGE}
    config["text_config"] = SMALL | {"model_type": "llama"}
    tower = read_vision(config, describe(config)).tower
    weights: dict[str, torch.Tensor] = {}

    def fetch(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return weights.setdefault(name, torch.randn(shape))

    one, apart = (TowerWeights(replace(tower, packed=packed), fetch).layer(0) for packed in (True, False))
    x = torch.randn(5, tower.hidden_size)
    for ours, theirs in zip((*one.qkv(x), *one.up(x)), (*apart.qkv(x), *apart.up(x)), strict=True):
        torch.testing.assert_close(ours, theirs)
