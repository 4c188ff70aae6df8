"""Write GGUF files of models with random weights, as llama.cpp's converter writes them.

The names of tensors and keys are the gguf package's. Our engine never writes such a file, so what it reads is not what
it wrote itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

__all__ = ["ARCHITECTURES", "TOKENS", "random_reference", "write_gguf"]

TOKENS = 96
SHAPE: dict[str, Any] = {
    "vocab_size": TOKENS,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "rms_norm_eps": 1e-5,
}
"""Rows of whole blocks of every type."""
GRANITE: dict[str, Any] = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
EXPERTS = {"num_local_experts": 3}
WINDOWS = {"sliding_window": 16, "head_dim": 64, "tie_word_embeddings": True}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
OLD = {"num_key_value_heads": None, "intermediate_size": None, "tie_word_embeddings": True}
HALF: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {}),
    "llama tied": ("llama", "llama", {"tie_word_embeddings": True}),
    "llama biased": ("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3": ("llama", "llama", {"rope_parameters": LLAMA3}),
    "llama linear": (
        "llama", "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    "mistral": ("mistral", "llama", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen2 yarn": ("qwen2", "qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 32}),
    "smollm3": ("smollm3", "smollm3", {"num_hidden_layers": 4}),
    "gemma": ("gemma", "gemma", {"head_dim": 64, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", "gemma2", WINDOWS | {"query_pre_attn_scalar": 64}),
    "gemma3": ("gemma3_text", "gemma3", WINDOWS | {"query_pre_attn_scalar": 64, "num_hidden_layers": 6}),
    "gemma3 scaled": (
        "gemma3_text", "gemma3", WINDOWS | {"query_pre_attn_scalar": 64, "num_hidden_layers": 6, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    "olmo2": ("olmo2", "olmo2", {}),
    "granite": ("granite", "granite", GRANITE),
    "qwen3moe": ("qwen3_moe", "qwen3moe", EXPERTS | {
        "head_dim": 32, "moe_intermediate_size": 256, "norm_topk_prob": True, "num_experts_per_tok": 2}),
    "gpt2": ("gpt2", "gpt2", OLD),
    "starcoder": ("gpt_bigcode", "starcoder", OLD),
    "gptneox": ("gpt_neox", "gptneox", {"num_key_value_heads": None, "rope_parameters": HALF}),
    "gptneox one": ("gpt_neox", "gptneox", {"num_key_value_heads": None, "use_parallel_residual": False}),
    "falcon": ("falcon", "falcon", OLD | {"num_kv_heads": 1}),
    "falcon two": ("falcon", "falcon", OLD | {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon one": ("falcon", "falcon", OLD | {
        "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    "olmo": ("olmo", "olmo", {"clip_qkv": 2.0}),
    "lfm2": ("lfm2", "lfm2", {
        "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "norm_eps": 1e-6}),
    "mixtral": ("mixtral", "llama", EXPERTS | {"num_experts_per_tok": 2, "sliding_window": None}),
}  # fmt: skip
"""By a label: the family, its architecture in GGUF files, and changes of `SHAPE`."""
PERMUTED = ("llama", "smollm3", "granite", "olmo")
WHOLE = ("ffn_gate_inp", "shortconv.conv")
"""Matrices that are never rounded."""
WITH_OFFSET = ("gemma", "gemma2", "gemma3")


def random_reference(label: str, **shape: int) -> Any:
    """Make a model of transformers with random weights; `shape` changes `SHAPE`."""
    torch.manual_seed(0)
    family, _, changes = ARCHITECTURES[label]
    config = AutoConfig.for_model(family, **(SHAPE | changes | shape))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, weight in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(weight, 0.5 if "norm" in name else 0.0, 0.2)
    return model


def write_gguf(
    path: Path,
    model: Any,
    label: str,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    without: str = "",
    extra: str = "",
    more: dict[str, Any] | None = None,
    tensors_a_piece: int = 0,
    lacking: str = "",
    experts_apart: bool = False,
) -> None:
    """Write a model.

    Args:
        path: the file.
        model: of transformers.
        label: of `ARCHITECTURES`.
        kind: the type of matrices.
        without: the name of a tensor to leave out.
        extra: the name of a tensor to add.
        more: further keys of the architecture, with integers.
        tensors_a_piece: cut the model into files with so many tensors; 0 writes one file.
        lacking: keys of the architecture to leave out, with spaces.
        experts_apart: write a tensor for each expert, as the first converters did.
    """
    architecture, config = ARCHITECTURES[label][1], model.config
    out = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_a_piece)
    _keys(out, architecture, config)
    for key, value in (more or {}).items():
        out.add_uint32(f"{architecture}.{key}", value)
    for key in lacking.split():
        del out.kv_data[0][f"{architecture}.{key}"]
    _vocabulary(out)
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    if architecture == "llama" and "llama 3" in label:
        out.add_tensor("rope_freqs.weight", _factors(config))
    for name, tensor in _merged(model.state_dict()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        array = _stored(name, tensor, architecture, config)
        if stored == without:
            continue
        if experts_apart and "_exps." in stored:
            for expert, matrix in enumerate(array):
                out.add_tensor(stored.replace("_exps", f".{expert}"), matrix)
            continue
        if array.ndim > 1 and not any(part in stored for part in WHOLE):
            out.add_tensor(stored, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            out.add_tensor(stored, array)
    if extra:
        out.add_tensor(extra, np.zeros(4, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _merged(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors as files name them: gate and up of all experts apart, [E, out, in] each."""
    for name, tensor in tensors.items():
        if not name.endswith("experts.gate_up_proj"):
            yield name.replace("experts.down_proj", "experts.down_proj.weight"), tensor
            continue
        for part, half in zip(("gate_proj", "up_proj"), tensor.chunk(2, 1), strict=True):
            yield name.replace("gate_up_proj", f"{part}.weight"), half


def _keys(out: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    hidden = config.hidden_size
    out.add_feed_forward_length(getattr(config, "intermediate_size", None) or 4 * hidden)
    out.add_head_count(config.num_attention_heads)
    if architecture in NAMED:
        NAMED[architecture](out, config)
        return
    out.add_head_count_kv(config.num_key_value_heads)
    if architecture != "olmo":
        out.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        out.add_layer_norm_eps(1e-5)
        out.add_clamp_kqv(config.clip_qkv)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    out.add_key_length(head_dim)
    out.add_value_length(head_dim)
    rope = dict(config.rope_parameters)
    rope = rope.get("full_attention", rope)
    out.add_rope_freq_base(rope["rope_theta"])
    if architecture == "llama":
        out.add_vocab_size(config.vocab_size)
        out.add_rope_dimension_count(head_dim)
    if rope["rope_type"] in ("linear", "yarn"):
        out.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        out.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        out.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if architecture in ("gemma2", "gemma3"):
        out.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        out.add_attn_logit_softcapping(config.attn_logit_softcapping)
        out.add_final_logit_softcapping(config.final_logit_softcapping)
    if hasattr(config, "num_local_experts"):
        out.add_expert_count(config.num_local_experts)
        out.add_expert_used_count(config.num_experts_per_tok)
    if architecture == "qwen3moe":
        out.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "granite":
        out.add_attention_scale(config.attention_multiplier)
        out.add_embedding_scale(config.embedding_multiplier)
        out.add_residual_scale(config.residual_multiplier)
        out.add_logit_scale(config.logits_scaling)


def _neox_keys(out: gguf.GGUFWriter, config: Any) -> None:
    head_dim = config.hidden_size // config.num_attention_heads
    out.add_rope_dimension_count(int(config.rope_parameters["partial_rotary_factor"] * head_dim))
    out.add_parallel_residual(config.use_parallel_residual)
    out.add_layer_norm_eps(config.layer_norm_eps)


def _falcon_keys(out: gguf.GGUFWriter, config: Any) -> None:
    out.add_tensor_data_layout("jploski")
    out.add_head_count_kv(config.num_kv_heads)
    out.add_layer_norm_eps(config.layer_norm_epsilon)


def _starcoder_keys(out: gguf.GGUFWriter, config: Any) -> None:
    out.add_head_count_kv(1)
    out.add_layer_norm_eps(config.layer_norm_epsilon)


def _lfm2_keys(out: gguf.GGUFWriter, config: Any) -> None:
    out.add_head_count_kv(
        [0 if kind == "conv" else config.num_key_value_heads for kind in config.layer_types]
    )
    out.add_rope_freq_base(config.rope_parameters["rope_theta"])
    out.add_vocab_size(config.vocab_size)
    out.add_shortconv_l_cache(config.conv_L_cache)
    out.add_layer_norm_rms_eps(config.norm_eps)


NAMED = {
    "gpt2": lambda out, config: out.add_layer_norm_eps(config.layer_norm_epsilon),
    "gptneox": _neox_keys,
    "starcoder": _starcoder_keys,
    "falcon": _falcon_keys,
    "lfm2": _lfm2_keys,
}
"""What writes the keys of architectures that have others than most."""


def _vocabulary(out: gguf.GGUFWriter) -> None:
    """Add a vocabulary of bytes, so that llama.cpp loads the file."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(TOKENS - 3))]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * (TOKENS - 3)]
    out.add_tokenizer_model("llama")
    out.add_token_list(texts)
    out.add_token_scores([0.0] * TOKENS)
    out.add_token_types(kinds)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)


def _stored(name: str, tensor: torch.Tensor, architecture: str, config: Any) -> np.ndarray:
    """Return a tensor as files have it."""
    array = tensor.float()
    if architecture in WITH_OFFSET and name.endswith("norm.weight"):
        array = array + 1
    if architecture in PERMUTED:
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, count in heads.items():
            if f".{part}." in name:
                halves = array.reshape(count, 2, array.shape[0] // count // 2, *array.shape[1:])
                array = halves.swapaxes(1, 2).reshape(array.shape)
    if architecture == "gpt2" and array.dim() == 2 and ".h." in name:
        array = array.t()
    if ".query_key_value." in name:
        number = config.num_attention_heads
        groups = getattr(config, "num_kv_heads", number)
        parts = array.view(groups, number // groups + 2, -1, *array.shape[1:])
        array = torch.cat([part.flatten(0, 2) for part in parts.tensor_split([-2, -1], 1)])
    return np.ascontiguousarray(array.squeeze(1).numpy() if "conv.conv" in name else array.numpy())


def _factors(config: Any) -> np.ndarray:
    """Return the divisors of Llama 3's frequencies, from transformers' own table."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    dims = config.hidden_size // config.num_attention_heads
    base = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, dims, 2).float() / dims)
    return (base / scaled).numpy().astype(np.float32)  # type: ignore[no-any-return]
