"""Fields of a config that change what a model computes are read as transformers reads them.

The laws:

* For random values of the fields of a family, a prompt in two chunks has the logits of transformers.
* A checkpoint without the output layer's prefix, and with masks that earlier versions saved, is the same model.
* A context longer than a model can be run for is refused by the field that limits it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.weights.family_cases import FULL, SLIDING, SMALL
from support.weights.model_driver import Driver
from support.weights.model_families import CASES

from plumbline.engines.native.models import UnsupportedModelError, WeightsError, load_model

LENGTH = 24
flags = st.booleans()
types = st.lists(st.sampled_from([FULL, SLIDING]), min_size=3, max_size=3)
_OLD = {"num_key_value_heads": None, "intermediate_size": None}
_SPARSE: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "head_dim": 16,
}


def fields(**strategies: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw each field, or take it as it is."""
    found = {
        name: each if isinstance(each, st.SearchStrategy) else st.just(each)
        for name, each in strategies.items()
    }
    return st.fixed_dictionaries(found)


FAMILIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "gpt2": fields(
        **_OLD,
        scale_attn_weights=flags,
        scale_attn_by_inverse_layer_idx=flags,
        n_inner=st.sampled_from([None, 80]),
        activation_function=st.sampled_from(["gelu_new", "gelu", "relu"]),
        tie_word_embeddings=flags,
    ),
    "gpt_bigcode": fields(**_OLD, multi_query=flags, scale_attn_weights=flags),
    "gpt_neox": fields(
        num_key_value_heads=None,
        use_parallel_residual=flags,
        attention_bias=flags,
        hidden_act=st.sampled_from(["gelu", "gelu_fast", "relu"]),
        rotary_pct=st.sampled_from([0.25, 0.5, 0.84, 1.0]),
        rotary_emb_base=st.sampled_from([100, 10000]),
    ),
    "gptj": fields(**_OLD, rotary_dim=st.sampled_from([2, 6, 8, 10, 12])),
    "codegen": fields(**_OLD, rotary_dim=st.sampled_from([2, 6, 8, 10, 12])),
    "falcon": st.one_of(
        fields(
            **_OLD,
            new_decoder_architecture=True,
            num_ln_in_parallel_attn=st.sampled_from([None, 1, 2]),
            num_kv_heads=st.sampled_from([1, 2, 4]),
            bias=flags,
        ),
        fields(**_OLD, parallel_attn=flags, multi_query=flags, bias=flags, tie_word_embeddings=flags),
    ),
    "opt": fields(
        **_OLD,
        ffn_dim=80,
        init_std=0.2,
        enable_bias=flags,
        layer_norm_elementwise_affine=flags,
        activation_function=st.sampled_from(["relu", "gelu"]),
    ),
    "olmo": fields(clip_qkv=st.sampled_from([None, 0.5, 3.0]), attention_bias=flags),
    "hyperclovax": fields(
        use_post_norm=flags,
        residual_multiplier=st.sampled_from([0.5, 1.0]),
        logits_scaling=st.sampled_from([0.5, 2.0]),
    ),
    "phimoe": fields(
        num_local_experts=4, router_jitter_noise=st.sampled_from([0.0, 0.01, 0.3]), attention_bias=flags
    ),
    "cohere2_moe": fields(
        num_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
        sliding_window=9,
        layer_types=types,
        mlp_layer_types=st.lists(st.sampled_from(["dense", "sparse"]), min_size=3, max_size=3),
        prefix_dense_intermediate_size=st.sampled_from([None, 64]),
        prefix_dense_sliding_window_pattern=st.sampled_from([1, 2]),
        expert_selection_fn=st.sampled_from(["softmax", "sigmoid"]),
        norm_topk_prob=flags,
        num_shared_experts=st.integers(0, 2),
        shared_expert_combination_strategy=st.sampled_from(["sum", "average"]),
        rms_norm_eps=st.sampled_from([None, 1e-6]),
    ),
    "afmoe": fields(
        **_SPARSE, layer_types=types, sliding_window=9, mup_enabled=flags, num_dense_layers=st.integers(0, 2)
    ),
    "lfm2": fields(
        layer_types=st.sampled_from([[FULL, "conv", "conv"], ["conv", FULL, "conv"], ["conv", "conv", FULL]]),
        conv_L_cache=st.integers(2, 5),
        conv_bias=flags,
        block_auto_adjust_ff_dim=flags,
        block_multiple_of=st.sampled_from([16, 48]),
        block_ffn_dim_multiplier=st.sampled_from([1.0, 1.3]),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_values_of_fields_mean_what_they_mean_in_transformers(family: str, data: st.DataObject) -> None:
    config = transformers.AutoConfig.for_model(family, **(SMALL | data.draw(FAMILIES[family])))
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    reference: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in reference.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data.normal_(0.7, 0.3)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        model = load_model(Path(folder), torch.float32)
    tokens = torch.randint(0, 99, (LENGTH,), generator=torch.Generator().manual_seed(2)).tolist()
    driver = Driver(model)
    sequence = driver.add(tokens, LENGTH + 1)
    for count in (15, LENGTH - 15):
        driver.step([(sequence, count)])
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens]), use_cache=False).logits[0]
    torch.testing.assert_close(torch.stack(sequence.logits), expected.float(), atol=1e-4, rtol=0)


def test_a_checkpoint_of_the_model_without_its_output_layer_is_read(tmp_path: Path) -> None:
    """As that of GPT-2, whose names lack a prefix, and which has the masks of its attention."""
    config = next(case for case in CASES if case.name == "gpt2").config()
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    whole = load_model(tmp_path, torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 8, 8) for layer in range(config.n_layer)}
    save_file(bare | masks, tmp_path / "model.safetensors")
    logits = []
    for model in (whole, load_model(tmp_path, torch.float32)):
        driver = Driver(model)
        logits.append(driver.step([(driver.add([3, 1, 4, 1, 5], 16), 5)]))
    assert torch.equal(*logits)
    save_file(bare | masks | {"h.0.attn.surprise": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"transformer\.h\.0\.attn\.surprise"):
        load_model(tmp_path, torch.float32)


@pytest.mark.parametrize(("name", "most", "field"), [
    ("gpt2", 256, "max_position_embeddings"),
    ("xglm", 256, "max_position_embeddings"),
    ("deepseek_v32", 128, "index_topk"),
    ("internlm3-dynamic", 256, "dynamic"),
])  # fmt: skip
def test_a_longer_context_than_a_model_can_be_run_for_is_refused(
    name: str, most: int, field: str, tmp_path: Path
) -> None:
    config = next(case for case in CASES if case.name == name).config()
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert load_model(tmp_path, torch.float32).description.context_length == most
    load_model(tmp_path, torch.float32, max_model_len=most)
    with pytest.raises(UnsupportedModelError, match=field):
        load_model(tmp_path, torch.float32, max_model_len=most + 1)
