"""A checkpoint is loaded to the last tensor or refused with the names that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.weights.model_families import Case
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from plumbline.engines.native.models import WeightsError, describe, load_model, random_model
from plumbline.engines.native.models.loading.model_folder import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny untied Llama in one file."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(WeightsError, match=r"missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(folder)


def test_a_tensor_that_nothing_uses_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.layers.2.extra": torch.zeros(3)}))
    with pytest.raises(WeightsError, match=r"not used: model\.layers\.2\.extra"):
        load_model(folder)


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \[3\]"):
        load_model(folder)


def test_what_a_model_does_without_is_named_in_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rotary frequencies of old checkpoints follow from the config."""
    old = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(4) for n in range(20)}
    rewrite(folder, lambda tensors: tensors.update(old))
    load_model(folder)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("20 tensors of the checkpoint are not used: model.layers.0.self_attn.rotary_emb")
    assert len(line) < 1000


HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "qwen3", "gemma", "gemma3_text", "cohere", "granite", "olmo2"]
)
@pytest.mark.parametrize("has", ["none", "copy", "own", "head"])
def test_the_output_layer_of_a_checkpoint_wins_over_its_config(family: str, has: str, tmp_path: Path) -> None:
    """A config that ties it may be wrong, a copy of the embedding is no other layer, and either name may be kept."""
    config = Case(
        family, {"tie_word_embeddings": True, **({"head_dim": 12} if "gemma" in family else {})}
    ).config()
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    embedding = load_file(tmp_path / "model.safetensors")[EMBEDDING]
    own = torch.randn_like(embedding)
    changes = {
        "none": {},
        "copy": {HEAD: embedding.clone()},
        "own": {HEAD: own},
        "head": {HEAD: embedding.clone()},
    }
    rewrite(tmp_path, lambda tensors: tensors.update(changes[has]))
    if has == "head":
        rewrite(tmp_path, lambda tensors: tensors.pop(EMBEDDING))
    model = load_model(tmp_path, torch.float32)
    hidden = torch.randn(1, 48)
    expected = hidden @ (own if has == "own" else embedding).float().T
    torch.testing.assert_close(model.head.logits(hidden), expected, atol=1e-4, rtol=1e-4)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor"):
        load_model(folder)


def test_a_shard_that_the_index_names_must_be_there(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(
        WeightsError, match=r"model-00001-of-00001\.safetensors is named by the index but missing"
    ):
        load_model(folder)


def test_the_dtype_defaults_to_the_config(folder: Path) -> None:
    assert load_model(folder).dtype == torch.float32
    model = load_model(folder, torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert all(k.dtype == v.dtype == torch.bfloat16 for k, v in model.allocate_kv(2, 4))
    assert model.compute_logits(torch.zeros(3, 16, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_cache_has_a_key_and_a_value_block_per_layer(folder: Path) -> None:
    caches = load_model(folder).allocate_kv(5, 4)
    assert [(k.shape, v.shape) for k, v in caches] == [((5, 4, 1, 8), (5, 4, 1, 8))] * 2
    assert len({tensor.data_ptr() for pair in caches for tensor in pair}) == 4


@pytest.mark.parametrize("tied", [False, True])
def test_the_largest_weights_are_read_before_all_others(folder: Path, tied: bool) -> None:
    """What they are read into would otherwise come on top of all that stays."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    description = describe({**config, "tie_word_embeddings": tied})
    names: list[str] = []

    def fetch(name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        names.append(name)
        return torch.ones(shape, dtype=dtype)

    build(description, fetch, torch.float32, torch.device("cpu"))
    largest = {f"{description.names.embedding}.weight", f"{description.names.head}.weight"}
    count = 1 if tied else 2
    assert {*names[:count]} <= largest
    assert not largest & {*names[count:]}


def test_random_models_are_equal_for_equal_seeds_only() -> None:
    config = describe({
        "model_type": "qwen3",
        "vocab_size": 30,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 64,
    })  # fmt: skip
    first, same, other = (random_model(config, seed) for seed in (1, 1, 2))
    ours, again, another = (each.embedding for each in (first, same, other))
    assert isinstance(ours, torch.Tensor)
    assert isinstance(again, torch.Tensor)
    assert isinstance(another, torch.Tensor)
    assert torch.equal(ours, again)
    assert not torch.equal(ours, another)
    hidden = torch.ones(1, 16)
    assert torch.equal(first.compute_logits(hidden), same.compute_logits(hidden))
