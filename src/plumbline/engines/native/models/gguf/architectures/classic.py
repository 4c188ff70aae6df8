"""The models of the first years."""

from __future__ import annotations

from typing import Any

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.gguf.architectures.parts import (
    EPS,
    Architecture,
    Keys,
    Tensors,
    partial_rotation,
)

__all__ = ["ARCHITECTURES"]


def _starcoder(keys: Keys, _: Tensors) -> dict[str, Any]:
    if keys.get("attention.head_count_kv", 1) != 1:
        raise UnsupportedModelError("attention.head_count_kv must be 1 for starcoder")
    return {}


def _falcon(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    two = "blk.0.attn_norm_2.weight" in tensors
    new = two or keys.get("attention.head_count_kv", 1) > 1
    return {"new_decoder_architecture": new, "num_ln_in_parallel_attn": 2 if two else 1}


ARCHITECTURES = {
    "gpt2": Architecture(model_type="gpt2", keys=EPS, rotated=False, biases=False),
    "starcoder": Architecture(
        model_type="gpt_bigcode", keys=EPS, fields=_starcoder, rotated=False, biases=False
    ),
    "gptneox": Architecture(
        model_type="gpt_neox",
        keys={
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        fields=partial_rotation,
        partial=True,
        biases=False,
    ),
    "falcon": Architecture(
        model_type="falcon",
        keys=EPS | {"attention.head_count_kv": "num_kv_heads"},
        fields=_falcon,
        biases=False,
    ),
}
