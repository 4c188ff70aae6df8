"""gpt-oss: sinks, a window in every other layer, experts with biases and a clamped activation."""

from __future__ import annotations

from plumbline.engines.native.models.description import (
    Attention,
    Experts,
    ModelDescription,
    Router,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.parts import (
    FULL,
    SLIDING,
    Family,
    heads,
    layer_types,
    model,
    rms,
    stack,
    windows,
)
from plumbline.engines.native.models.families.rope_fields import read_rope, rope_parameters
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.names import Names

__all__ = ["FAMILIES"]

_NAMES = Names(
    router="mlp.router",
    expert_gate_up=("mlp.experts.gate_up_proj",),
    expert_down="mlp.experts.down_proj",
    experts_transposed=True,
    experts_alternate=True,
)
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The rotation of a config that has none."""


def _gpt_oss(fields: Fields) -> ModelDescription:
    # Releases repeat num_experts_per_tok and the context before scaling.
    fields.without_effect("experts_per_token", "initial_context_length", "hidden_act")
    for name, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if fields.number(name, value) != value:
            raise UnsupportedModelError(f"{name} must be {value}, not {fields.get(name)}")
    count = fields.integer("num_hidden_layers")
    types = layer_types(fields, (FULL if layer % 2 else SLIDING for layer in range(count)))
    rope = read_rope(fields, 150000.0, parameters=rope_parameters(fields) or _YARN)
    shape, bias = heads(fields, head_dim=64), fields.flag("attention_bias", True)
    experts = Experts(
        number=fields.integer("num_local_experts", 128),
        width=fields.integer("intermediate_size"),
        router=Router(top_k=fields.integer("num_experts_per_tok", 4), scores="softmax_of_chosen", bias=True),
        activation="swiglu_oss",
        bias=True,
    )
    mixers = (
        Attention(**shape, rope=rope, qkv_bias=bias, o_bias=bias, sinks=True, window=window)
        for window in windows(fields, types)
    )
    return model(fields, stack(mixers, experts), rms(fields), names=_NAMES)


FAMILIES = {"gpt_oss": Family("gpt-oss", _gpt_oss)}
