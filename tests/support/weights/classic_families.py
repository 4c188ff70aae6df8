"""Small configs of the families of the years before Llama."""

from __future__ import annotations

from typing import Any

from support.weights.family_cases import HALF, SMALL, WIDE, Case

__all__ = ["CLASSIC"]

_OTHERS = ("num_key_value_heads", "intermediate_size")
"""Fields of `SMALL` that some of them do not have."""


def old(family: str, label: str = "", *, heads: int = 2, **changes: Any) -> list[Case]:
    """A case on torch, and one with wide heads on the compiled kernels."""
    plain = {**dict.fromkeys(_OTHERS), **changes}
    wide = WIDE | {"num_attention_heads": heads, "hidden_size": 32 * heads} | plain
    long = bool(label)
    return [
        Case(family, plain, label, is_long=long),
        Case(family, wide, label, is_compiled=True, is_long=long),
    ]


_WIDTH = {"intermediate_size": SMALL["intermediate_size"]}
CLASSIC = [
    *old("gpt2"),
    *old("gpt2", "scaled", scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False, n_inner=80),
    *old("gpt_bigcode"),
    *old("gpt_bigcode", "heads", multi_query=False),
    *old(
        "gpt_neo",
        attention_types=[[["global", "local"], 1], [["local"], 1]],
        window_size=11,
        num_layers=3,
        **_WIDTH,
    ),
    *old("gpt_neox", rope_parameters=HALF, **_WIDTH),
    *old(
        "gpt_neox",
        "one",
        rope_parameters=HALF,
        use_parallel_residual=False,
        attention_bias=False,
        **_WIDTH,
    ),
    *old("gptj", rotary_dim=6),
    *old("codegen", rotary_dim=6, heads=4),
    *old("falcon"),
    *old("falcon", "new", new_decoder_architecture=True, num_kv_heads=2, bias=True, ffn_hidden_size=80),
    *old("falcon", "one", new_decoder_architecture=True, num_ln_in_parallel_attn=1, num_kv_heads=2),
    *old("falcon", "before", parallel_attn=False, multi_query=False, tie_word_embeddings=False),
    *old("opt", ffn_dim=80, init_std=0.2),
    *old("opt", "plain", ffn_dim=80, init_std=0.2, layer_norm_elementwise_affine=False, enable_bias=False),
    *old("xglm", ffn_dim=80, init_std=0.2),
    *old("biogpt", **_WIDTH),
]
