"""The fields that configs of releases share."""

from __future__ import annotations

from typing import Any

SHARED: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0",
    "use_cache": True,
}
GELU = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
FULL, SLIDING = "full_attention", "sliding_attention"


def shape(
    layers: int, heads: int, kv_heads: int, hidden: int, inner: int, vocab: int, length: int
) -> dict[str, int]:
    """The fields that every config has."""
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": length,
    }
