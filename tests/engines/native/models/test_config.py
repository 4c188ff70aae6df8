"""A config.json is read in full or refused by the name of the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from plumbline.engines.native.models import Rope, UnsupportedModelError, describe, read_description
from plumbline.engines.native.models.rope import rope_table

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}

ROPES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 128, "truncate": False},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
    },
]


def rope_of(config: dict[str, Any]) -> Rope:
    """The rotation of a config's first layer."""
    mixer: Any = describe(config).layers[0].mixer
    rope: Rope = mixer.rope
    return rope


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_rotations_are_those_of_transformers_in_either_way_of_writing_them(rope: Any, theta: float) -> None:
    """`rope_parameters` and the older `rope_theta` with `rope_scaling` (also with `type`) mean the same."""
    reference = LlamaConfig(**BASE, rope_parameters=rope | {"rope_theta": theta})
    frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](reference)
    angles = torch.outer(torch.arange(2048.0), frequencies)
    expected = torch.cat((angles.cos(), angles.sin()), 1) * scale
    old = {("type" if name == "rope_type" else name): value for name, value in rope.items()}
    for config in (
        BASE | {"rope_parameters": rope | {"rope_theta": theta}},
        BASE | {"rope_theta": theta, "rope_scaling": rope},
        BASE | {"rope_theta": theta, "rope_scaling": old},
        # A scaling that was added to a config of transformers 5.
        BASE | {"rope_scaling": old, "rope_parameters": {"rope_type": "default", "rope_theta": theta}},
    ):
        table = rope_table(rope_of(config), 16, 2048)
        torch.testing.assert_close(table, expected, atol=2e-4, rtol=0)


def test_without_scaling_the_rotations_are_plain() -> None:
    for config in (BASE, BASE | {"rope_scaling": None}, BASE | {"rope_parameters": {"rope_type": "default"}}):
        assert rope_of(config) == rope_of(BASE)
    table = rope_table(rope_of(BASE), 4, 3)
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.01], [2.0, 0.02]])
    torch.testing.assert_close(table, torch.cat((angles.cos(), angles.sin()), 1))


def test_the_type_of_weights_has_two_spellings() -> None:
    for written in ("bfloat16", "torch.bfloat16"):
        assert describe(BASE | {"torch_dtype": written}).dtype == torch.bfloat16
    assert describe(BASE | {"dtype": "auto"}).dtype == describe(BASE).dtype


def test_yarn_makes_the_context_longer() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    assert describe(BASE | {"rope_scaling": rope}).context_length == 4096
    assert describe(BASE).context_length == 2048


LLAMA4 = {"intermediate_size_mlp": 128}
STATE_SPACE = {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 2,
    "mamba_n_heads": 2,
    "shared_intermediate_size": 8,
    "layer_types": ["mamba", "attention"],
}


NEMOTRON = {"model_type": "nemotron_h"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "bert"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "tanh"}, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, "quantization_config.quant_method"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "rope_type 'ntk'"),
        (
            {
                "model_type": "phi",
                "partial_rotary_factor": 0.2,
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            },
            "rotation of 3 numbers",
        ),
        ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}, "short_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "surprise": 1}}, "surprise"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"torch_dtype": "int8"}, "dtype"),
        ({"hidden_act": "relu2"}, "'relu2' with a gate"),
        ({"model_type": "mixtral", "hidden_act": "relu2"}, "'relu2' with a gate"),
        ({"model_type": "arcee", "hidden_act": "silu"}, "'silu' without a gate"),
        ({"model_type": "gemma4_text", "vocab_size_per_layer_input": 7}, "vocab_size_per_layer_input"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 1}, "num_kv_shared_layers"),
        ({"model_type": "gemma4_text", "use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv"),
        ({"model_type": "gpt2", "n_embd": 32}, "n_embd and hidden_size"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 3]]}, "attention_types"),
        ({"model_type": "codegen", "num_attention_heads": 2, "rotary_dim": 32}, "multiple of 4"),
        ({"model_type": "gptj", "rotary_dim": None}, "rotary_dim"),
        ({"model_type": "gptj", "rotary_dim": 18}, "rotary_dim"),
        ({"model_type": "falcon", "alibi": True}, "alibi"),
        ({"model_type": "falcon", "num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn"),
        ({"model_type": "falcon", "new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn"),
        ({"model_type": "falcon", "multi_query": False, "num_kv_heads": 2}, "num_kv_heads"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "word_embed_proj_dim"),
        ({"model_type": "xglm", "pad_token_id": 2}, "pad_token_id"),
        ({"model_type": "internlm3", "qkv_bias": True}, "qkv_bias"),
        ({"model_type": "phimoe", "num_experts_per_tok": 3}, "num_experts_per_tok"),
        ({"model_type": "cohere2_moe", "expert_selection_fn": "max"}, "expert_selection_fn"),
        ({"model_type": "afmoe", "score_func": "softmax", "moe_intermediate_size": 8}, "score_func"),
        ({"model_type": "lfm2", "layer_types": ["conv"] * 4}, "full_attention"),
        ({"model_type": "lfm2", "conv_L_cache": 1}, "conv_L_cache"),
        ({"model_type": "deepseek_v32", "layer_types": ["full_attention"] * 4}, "indexed_attention"),
        ({"model_type": "gpt_oss", "swiglu_limit": 9.0}, "swiglu_limit"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"model_type": "granitemoehybrid"}, "layer_types"),
        (STATE_SPACE | {"time_step_limit": [0, 1]}, "time_step_limit"),
        (STATE_SPACE | {"mamba_n_groups": 3}, "multiple of mamba_n_groups"),
        (STATE_SPACE | {"mamba_d_conv": 1}, "mamba_d_conv"),
        (STATE_SPACE | {"hidden_act": "gelu_new"}, "hidden_act must be silu"),
        ({"model_type": "bamba"}, "attn_layer_indices"),
        (NEMOTRON | {"layers_block_type": ["mlp", "full_attention"]}, "'mlp' at 0"),
        (NEMOTRON | {"hybrid_override_pattern": "*--"}, "'mlp' at 2"),
        (NEMOTRON | {"hybrid_override_pattern": "M-X"}, "'X' at 2"),
        (NEMOTRON | {"hybrid_override_pattern": "M-"}, "full_attention"),
        (NEMOTRON | {"hybrid_override_pattern": "*-", "moe_latent_size": 8}, "moe_latent_size"),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, "no_rope_layers"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": -1}, "num_kv_shared_layers must not be"),
        (
            {"model_type": "gemma4_text", "enable_moe_block": True, "num_experts": 2, "top_k_experts": 3}
            | {"moe_intermediate_size": 8},
            "top_k_experts",
        ),
        ({"model_type": "qwen3_5_text", "layer_types": ["linear_attention"] * 4}, "full_attention"),
        ({"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1.0]}}, "long_factor"),
        ({"surprise": 1, "other": 2.5}, "not known for model_type 'llama': other, surprise"),
        ({"rope_parameters": {"rope_theta": 10.0, "surprise": 1}}, "surprise"),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["full_attention", "full_attention", "full_attention", "chunked_attention"],
            },
            "layer_types",
        ),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["full_attention"],
            },
            "layer_types",
        ),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedModelError, match=field):
        describe(BASE | changes)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "llama", "sliding_window": 8}, [None] * 4),
        ({"model_type": "mistral", "sliding_window": 8}, [8] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [None] * 4),
        ({"model_type": "llama4_text", **LLAMA4}, [8192, 8192, 8192, None]),
        ({"model_type": "llama4_text", **LLAMA4, "attention_chunk_size": 16}, [16, 16, 16, None]),
        ({"model_type": "llama4_text", **LLAMA4, "attention_chunk_size": None}, [None] * 4),
        ({"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 0}, [None] * 4),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 8,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            [None, None, None, 8],
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            [8, None, 8, None],
        ),
    ],
)
def test_each_layer_has_the_window_that_its_family_gives_it(
    changes: dict[str, Any], windows: list[int]
) -> None:
    config = describe(BASE | changes)
    mixers: list[Any] = [layer.mixer for layer in config.layers]
    assert [mixer.window for mixer in mixers] == windows
    assert [mixer.tiled for mixer in mixers] == [
        config.model_type == "llama4_text" and window is not None for window in windows
    ]


def test_a_config_that_transformers_writes_is_read_back(tmp_path: Path) -> None:
    """Qwen2 as saved by transformers: biases, dtype and sizes; the ids that end a sequence from either file."""
    reference = Qwen2Config(
        **{k: v for k, v in BASE.items() if k != "model_type"}, eos_token_id=5, dtype="bfloat16"
    )
    reference.save_pretrained(tmp_path)
    config = read_description(tmp_path)
    mixer: Any = config.layers[0].mixer
    feed_forward: Any = config.layers[0].feed_forward
    assert (mixer.qkv_bias, mixer.o_bias, feed_forward.bias, mixer.head_norm) == (True, False, False, None)
    assert (config.dtype, mixer.head_dim, mixer.kv_heads) == (torch.bfloat16, 16, 2)
    assert config.eos_token_ids == {5}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert read_description(tmp_path).eos_token_ids == {5, 7}
