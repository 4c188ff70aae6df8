"""Name the tensors of a checkpoint by their place in a model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of a model's tensors, without `.weight` and `.bias`.

    The defaults are Llama's, which most families share. Several names at one place are projections of the same input,
    which are stacked along their outputs.
    """

    base: str = "model."
    """What the names of tensors begin with, except in checkpoints of the model without its output layer."""
    embedding: str = "model.embed_tokens"
    embedding_norm: str = "model.embed_norm"
    positions: str = "model.embed_positions"
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{}."
    """What the names below begin with, by the number of the layer."""
    before_mixer: str = "input_layernorm"
    after_mixer: str = "post_attention_layernorm"
    before_feed_forward: str = "post_attention_layernorm"
    after_feed_forward: str = "post_feedforward_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    attention_gate: str = ""
    """The projection of gates of an attention, if it is one of its own."""
    o: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    curve: str = "mlp.act_fn"
    """What the names of the numbers of an activation begin with."""
    scale: str = "layer_scalar"
    """The whole name."""
    sinks: str = "self_attn.sinks"
    q: str = "self_attn.q_proj"
    """The queries of latent attention; those with two projections have the next three."""
    q_a: str = "self_attn.q_a_proj"
    q_a_norm: str = "self_attn.q_a_layernorm"
    q_b: str = "self_attn.q_b_proj"
    kv_a: str = "self_attn.kv_a_proj_with_mqa"
    kv_a_norm: str = "self_attn.kv_a_layernorm"
    kv_b: str = "self_attn.kv_b_proj"
    delta: tuple[str, ...] = (
        "linear_attn.in_proj_qkv",
        "linear_attn.in_proj_z",
        "linear_attn.in_proj_b",
        "linear_attn.in_proj_a",
    )
    """The projections of a delta net: queries, keys and values; gates of results; strengths; decays."""
    delta_conv: str = "linear_attn.conv1d"
    delta_convs: tuple[str, ...] = ()
    """Those of queries, keys and values, where each has its own."""
    delta_convs_even: bool = False
    """Whether these are thirds of all channels, as transformers saves them, and not as wide as the projections."""
    delta_rates: str = "linear_attn.A_log"
    """The whole name."""
    delta_shifts: str = "linear_attn.dt_bias"
    """The whole name."""
    delta_norm: str = "linear_attn.norm"
    delta_o: str = "linear_attn.out_proj"
    delta_skip: str = "mamba.D"
    """The whole name; of state spaces only."""
    short: str = "conv.in_proj"
    """The projection of a short convolution: gates of its inputs, gates of its results, inputs."""
    short_conv: str = "conv.conv"
    short_o: str = "conv.out_proj"
    selective: str = "mamba"
    """What the names of the tensors of a state space of Mamba 1 begin with."""
    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    """The whole name."""
    expert_gate_up: tuple[str, ...] = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj")
    """By the number of the expert. A name without a place for it is the whole name of a tensor [E, out, in]."""
    expert_down: str = "mlp.experts.{}.down_proj"
    shared_gate_up: tuple[str, ...] = ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj")
    shared_down: str = "mlp.shared_experts.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    router_scale: str = "router.scale"
    """The whole name; this and the next four are of experts that read the residual stream by norms of their own."""
    router_factors: str = "router.per_expert_scale"
    """The whole name."""
    before_experts: str = "pre_feedforward_layernorm_2"
    after_experts: str = "post_feedforward_layernorm_2"
    after_shared: str = "post_feedforward_layernorm_1"
    token_embedding: str = "model.embed_tokens_per_layer"
    """The second embedding of tokens, and what makes an input of each layer of it."""
    token_projection: str = "model.per_layer_model_projection"
    token_norm: str = "model.per_layer_projection_norm"
    token_gate: str = "per_layer_input_gate"
    """In each layer."""
    token_up: str = "per_layer_projection"
    after_token: str = "post_per_layer_input_norm"
    experts_transposed: bool = False
    """Whether tensors of all experts are [E, in, out]."""
    transposed: bool = False
    """Whether linear layers are [in, out]."""
    experts_alternate: bool = False
    """Whether columns of gate and up alternate in them, as in gpt-oss."""
    ignored: tuple[str, ...] = ()
    """What the names of tensors begin with that the model does without, such as layers that predict further tokens."""
    ignored_ends: tuple[str, ...] = ()
    """What such names end with, such as the masks that earlier versions of transformers saved."""
