"""Translate the metadata of a GGUF file to the fields of a `config.json`, one table for each architecture.

The readers of families (`families/`) then describe the model, so a field is read in one place. Every key of the
architecture is translated, known to be without effect, or refused by its name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from plumbline.engines.native.models.checkpoint import some
from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_LAYERS, MOST_SHOWN
from plumbline.engines.native.models.gguf.architectures import classic, dense, experts, gemma, hybrid
from plumbline.engines.native.models.gguf.architectures.dense import GLM4_OF_IMAGES, OLMO3
from plumbline.engines.native.models.gguf.architectures.experts import DEEPSEEK_V2
from plumbline.engines.native.models.gguf.architectures.parts import EXPERTS, Architecture, Keys, rope

__all__ = ["ARCHITECTURES", "Architecture", "architecture_of", "config_of"]

_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
"""The fields of keys that all architectures have."""
_READ = (
    "attention.value_length expert_gating_func nextn_predict_layers rope.dimension_count rope.freq_base "
    "rope.scale_linear "
    "rope.scaling.attn_factor rope.scaling.factor rope.scaling.original_context_length rope.scaling.type "
    "rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow "
    "rope.scaling.yarn_ext_factor"
)
"""Keys that `config_of` reads."""
_NEEDED = "attention.head_count block_count embedding_length "
"""Keys that must be positive integers."""
_WITHOUT_EFFECT = "rope.scaling.finetuned tensor_data_layout"

_NO_EXPERTS = "expert_count expert_used_count expert_group_count expert_group_used_count"
"""Keys that files without experts may have, as zero."""

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        name: architecture
        for kind in (dense, classic, gemma, experts, hybrid)
        for name, architecture in kind.ARCHITECTURES.items()
    }
)
"""The architectures that our engine reads, by `general.architecture`."""
_MIXTRAL = Architecture(
    model_type="mixtral", keys=EXPERTS, interleaved=True, needed="expert_count expert_used_count"
)
"""What `llama` stands for in files with experts."""


def architecture_of(metadata: Mapping[str, Any], tensors: Collection[str]) -> Architecture | None:
    """Return the architecture of a file with these tensors, None if it is not known."""
    name = metadata.get("general.architecture")
    if name == "llama" and metadata.get("llama.expert_count"):
        return _MIXTRAL
    if name == "deepseek2" and not any(each.endswith("exp_probs_b.bias") for each in tensors):
        return DEEPSEEK_V2
    if name == "mistral3" and metadata.get("mistral3.rope.scaling.type") != "yarn":
        return ARCHITECTURES["llama"]  # Mistral Small 3.1 and 3.2.
    if name == "glm4" and "glm4.rope.dimension_sections" in metadata:
        return GLM4_OF_IMAGES
    if name == "olmo2" and "olmo2.attention.sliding_window" in metadata:
        return OLMO3
    return ARCHITECTURES.get(name) if isinstance(name, str) else None


def config_of(metadata: Mapping[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    """Return the fields of a `config.json` that stand for a file's metadata.

    Args:
        metadata: of the file.
        tensors: the names of its tensors, which say what no key does.

    Raises:
        UnsupportedModelError: the architecture or one of its keys is not supported.
    """
    name = metadata.get("general.architecture")
    architecture = architecture_of(metadata, tensors)
    if architecture is None:
        raise UnsupportedModelError(
            f"general.architecture {name!r:.{MOST_SHOWN}} is not supported ({', '.join(ARCHITECTURES)} are)"
        )
    keys = Keys(
        {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    )
    named = _KEYS | dict(architecture.keys)
    unneeded = {key for key in _NO_EXPERTS.split() if not keys.get(key)}
    unknown = sorted(keys.keys() - named.keys() - unneeded - set(f"{_READ} {_WITHOUT_EFFECT}".split()))
    if unknown:
        raise UnsupportedModelError(f"the metadata have keys that are not known for {name}: {some(unknown)}")
    if missing := [key for key in (_NEEDED + architecture.needed).split() if key not in keys]:
        raise UnsupportedModelError(f"the metadata lack {', '.join(missing)}, which {name} needs")
    _check_shape(keys, architecture.partial)
    found = {named[key]: value for key, value in keys.items() if named.get(key)}
    found["num_hidden_layers"] = keys["block_count"] - keys.get("nextn_predict_layers", 0)
    _check_gating(keys, architecture)
    with keys.readable():
        found.setdefault("vocab_size", len(metadata.get("tokenizer.ggml.tokens", [])))
        fields = architecture.fields(keys, tensors)
        if architecture.rotated and "rope_parameters" not in fields:
            fields["rope_parameters"] = rope(keys)
    biased = {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & set(tensors)
    if architecture.biases and biased and architecture.model_type != "qwen2":
        found["attention_bias"] = True
    if architecture.biases and "blk.0.ffn_down.bias" in tensors:
        found["mlp_bias"] = True
    return {
        "model_type": architecture.model_type,
        "tie_word_embeddings": "output.weight" not in tensors,
        **found,
        **fields,
    }


def _check_gating(keys: Keys, architecture: Architecture) -> None:
    """Refuse experts that are chosen in another way than those of the family."""
    gating = keys.get("expert_gating_func", architecture.gating)
    if gating != architecture.gating:
        raise UnsupportedModelError(
            f"expert_gating_func {gating!r:.{MOST_SHOWN}} is not supported: it must be {architecture.gating} for this "
            "architecture (1 is softmax, 2 is sigmoid)"
        )


def _check_shape(keys: Keys, partial: bool) -> None:
    """Refuse shapes that no family here has."""
    for name in _NEEDED.split():
        if type(keys[name]) is not int or keys[name] <= 0:
            raise UnsupportedModelError(
                f"{name} must be a positive integer, not {keys[name]!r:.{MOST_SHOWN}}"
            )
    layers, further = keys["block_count"], keys.get("nextn_predict_layers", 0)
    if layers > MOST_LAYERS:
        raise UnsupportedModelError(f"block_count is larger than {MOST_LAYERS}, the most that is supported")
    if type(further) is not int or not 0 <= further < layers:
        raise UnsupportedModelError(
            f"nextn_predict_layers must be less than block_count, not {further!r:.{MOST_SHOWN}}"
        )
    heads, width = keys["attention.head_count"], keys["embedding_length"]
    if "attention.kv_lora_rank" in keys:  # Latent attention, whose keys, values and rotations differ.
        return
    head_dim = keys.get("attention.key_length", width // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if keys.get(name, head_dim) != head_dim and not (partial and name == "rope.dimension_count"):
            raise UnsupportedModelError(
                f"{name} {keys[name]!r:.{MOST_SHOWN}} is not supported: it must be {head_dim!r:.{MOST_SHOWN}}"
            )
