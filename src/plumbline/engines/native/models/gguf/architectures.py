"""Translate the metadata of a GGUF file to the fields of a `config.json`, one table for each architecture.

The readers of families (`families/`) then describe the model, so a field is read in one place. Every key of the
architecture is translated, known to be without effect, or refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.families.parts import FULL, SLIDING

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
    "attention.value_length rope.dimension_count rope.freq_base rope.scale_linear "
    "rope.scaling.attn_factor rope.scaling.factor rope.scaling.original_context_length rope.scaling.type "
    "rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow"
)
"""Keys that `config_of` reads."""
_NEEDED = "attention.head_count embedding_length "
_WITHOUT_EFFECT = "rope.scaling.finetuned tensor_data_layout"

Keys = Mapping[str, Any]
"""The metadata of an architecture, without its name."""


Tensors = Collection[str]
"""The names of a file's tensors."""


def _nothing(_: Keys, __: Tensors) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a `general.architecture` stands for."""

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    """Fields of its own keys."""
    fields: Callable[[Keys, Tensors], dict[str, Any]] = _nothing
    """Returns fields that no key has: llama.cpp computes them from others, or from the tensors that there are."""
    interleaved: bool = False
    """Whether rows of q and k are stored in the order in which neighbours are rotated together."""
    norms_with_offset: bool = False
    """Whether the weights of norms contain the offset that the family adds."""
    needed: str = ""
    """Keys that must be there, besides those that the family reads."""
    rotated: bool = True
    """Whether heads are rotated."""
    partial: bool = False
    """Whether `rope.dimension_count` may be a part of a head."""
    biases: bool = True
    """Whether the config says which projections have a bias, and so the tensors here."""


def _gemma2(keys: Keys, _: Tensors) -> dict[str, Any]:
    return {"query_pre_attn_scalar": _query_scalar(keys, layers_of_largest=46)}


def _gemma3(keys: Keys, _: Tensors) -> dict[str, Any]:
    # Only layers without a window are scaled. Files of the first converters have no base for the others.
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    return {
        "query_pre_attn_scalar": _query_scalar(keys, layers_of_largest=62),
        "rope_parameters": {FULL: _rope(keys), SLIDING: local},
    }


def _granite(keys: Keys, _: Tensors) -> dict[str, Any]:
    if keys.get("rope.scaling.finetuned") is False:
        raise UnsupportedModelError("rope.scaling.finetuned false is not supported: it turns rotations off")
    return {}


def _starcoder(keys: Keys, _: Tensors) -> dict[str, Any]:
    if keys.get("attention.head_count_kv", 1) != 1:
        raise UnsupportedModelError("attention.head_count_kv must be 1 for starcoder")
    return {}


def _neox(keys: Keys, _: Tensors) -> dict[str, Any]:
    head_dim = keys["embedding_length"] // keys["attention.head_count"]
    # Half a number more, so that the product with the width is not rounded below it.
    turned = keys.get("rope.dimension_count", head_dim) + 0.5
    return {"partial_rotary_factor": min(1.0, turned / head_dim)}


def _falcon(keys: Keys, tensors: Tensors) -> dict[str, Any]:
    two = "blk.0.attn_norm_2.weight" in tensors
    new = two or keys.get("attention.head_count_kv", 1) > 1
    return {"new_decoder_architecture": new, "num_ln_in_parallel_attn": 2 if two else 1}


def _olmo(keys: Keys, _: Tensors) -> dict[str, Any]:
    if abs(keys.get("attention.layer_norm_epsilon", 1e-5) - 1e-5) > 1e-9:
        raise UnsupportedModelError("attention.layer_norm_epsilon must be 1e-05 for olmo")
    return {}


def _lfm2(keys: Keys, _: Tensors) -> dict[str, Any]:
    counts = keys["attention.head_count_kv"]
    if not isinstance(counts, list) or len({*counts} - {0}) != 1:
        raise UnsupportedModelError(
            "attention.head_count_kv must have a number for each layer of lfm2, or zero"
        )
    return {
        "block_auto_adjust_ff_dim": False,
        "layer_types": [FULL if count else "conv" for count in counts],
        "num_key_value_heads": max(counts),
    }


def _query_scalar(keys: Keys, layers_of_largest: int) -> int:
    """Return what scores are divided by the root of: head_dim, in the model of 27B the row divided by its heads."""
    if keys.get("block_count") == layers_of_largest:
        return int(keys["embedding_length"] // keys["attention.head_count"])
    return int(keys["attention.key_length"])


_EXPERTS = {
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
}
_EPS = {"attention.layer_norm_epsilon": "layer_norm_epsilon"}
_NO_EXPERTS = "expert_count expert_used_count"
"""Keys that files without experts may have, as zero."""

_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window": "sliding_window",
}

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture(model_type="llama", interleaved=True),
        "qwen2": Architecture(model_type="qwen2"),
        "qwen3": Architecture(model_type="qwen3"),
        "qwen3moe": Architecture(
            model_type="qwen3_moe",
            keys={**_EXPERTS, "expert_feed_forward_length": "moe_intermediate_size"},
            # llama.cpp divides the weights of a token by their sum, whatever the config says.
            fields=lambda _, __: {"norm_topk_prob": True},
            needed="expert_count expert_used_count expert_feed_forward_length",
        ),
        "smollm3": Architecture(model_type="smollm3", interleaved=True),
        "gemma": Architecture(model_type="gemma", norms_with_offset=True),
        "gemma2": Architecture(
            model_type="gemma2",
            keys=_CAPS,
            fields=_gemma2,
            norms_with_offset=True,
            needed="attention.key_length attention.sliding_window",
        ),
        "gemma3": Architecture(
            model_type="gemma3_text",
            keys={**_CAPS, "rope.freq_base_swa": ""},
            fields=_gemma3,
            norms_with_offset=True,
            needed="attention.key_length attention.sliding_window",
        ),
        "olmo2": Architecture(model_type="olmo2"),
        "granite": Architecture(
            model_type="granite",
            keys={
                "attention.scale": "attention_multiplier",
                "embedding_scale": "embedding_multiplier",
                "residual_scale": "residual_multiplier",
                "logit_scale": "logits_scaling",
            },
            fields=_granite,
            interleaved=True,
        ),
        "gpt2": Architecture(model_type="gpt2", keys=_EPS, rotated=False, biases=False),
        "starcoder": Architecture(
            model_type="gpt_bigcode", keys=_EPS, fields=_starcoder, rotated=False, biases=False
        ),
        "gptneox": Architecture(
            model_type="gpt_neox",
            keys={
                "attention.layer_norm_epsilon": "layer_norm_eps",
                "use_parallel_residual": "use_parallel_residual",
            },
            fields=_neox,
            partial=True,
            biases=False,
        ),
        "falcon": Architecture(
            model_type="falcon",
            keys=_EPS | {"attention.head_count_kv": "num_kv_heads"},
            fields=_falcon,
            biases=False,
        ),
        "olmo": Architecture(
            model_type="olmo",
            keys={"attention.layer_norm_epsilon": "", "attention.clamp_kqv": "clip_qkv"},
            fields=_olmo,
            interleaved=True,
        ),
        "lfm2": Architecture(
            model_type="lfm2",
            keys={"shortconv.l_cache": "conv_L_cache", "attention.layer_norm_rms_epsilon": "norm_eps"},
            fields=_lfm2,
            needed="attention.head_count_kv shortconv.l_cache",
            biases=False,
        ),
    }
)
"""The architectures that our engine reads, by `general.architecture`."""
_MIXTRAL = Architecture(
    model_type="mixtral", keys=_EXPERTS, interleaved=True, needed="expert_count expert_used_count"
)
"""What `llama` stands for in files with experts."""


def architecture_of(metadata: Mapping[str, Any]) -> Architecture | None:
    """Return the architecture of a file, None if it is not known."""
    name = metadata.get("general.architecture")
    if name == "llama" and metadata.get("llama.expert_count"):
        return _MIXTRAL
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
    architecture = architecture_of(metadata)
    if architecture is None:
        raise UnsupportedModelError(
            f"general.architecture {name!r} is not supported ({', '.join(ARCHITECTURES)} are)"
        )
    keys = {
        key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")
    }
    named = _KEYS | dict(architecture.keys)
    unneeded = {key for key in _NO_EXPERTS.split() if not keys.get(key)}
    unknown = sorted(keys.keys() - named.keys() - unneeded - set(f"{_READ} {_WITHOUT_EFFECT}".split()))
    if unknown:
        raise UnsupportedModelError(
            f"the metadata have keys that are not known for {name}: {', '.join(unknown)}"
        )
    if missing := [key for key in (_NEEDED + architecture.needed).split() if key not in keys]:
        raise UnsupportedModelError(f"the metadata lack {', '.join(missing)}, which {name} needs")
    found = {named[key]: value for key, value in keys.items() if named.get(key)}
    found.setdefault("vocab_size", len(metadata.get("tokenizer.ggml.tokens", [])))
    _check_shape(keys, architecture.partial)
    if architecture.biases and "blk.0.attn_q.bias" in tensors and architecture.model_type != "qwen2":
        found["attention_bias"] = True
    if architecture.biases and "blk.0.ffn_down.bias" in tensors:
        found["mlp_bias"] = True
    return {
        "model_type": architecture.model_type,
        "tie_word_embeddings": "output.weight" not in tensors,
        **({"rope_parameters": _rope(keys)} if architecture.rotated else {}),
        **found,
        **architecture.fields(keys, tensors),
    }


def _check_shape(keys: Keys, partial: bool) -> None:
    """Refuse shapes that no family here has."""
    heads, width = keys["attention.head_count"], keys["embedding_length"]
    if not isinstance(heads, int) or not isinstance(width, int) or heads <= 0:
        raise UnsupportedModelError("attention.head_count and embedding_length must be positive integers")
    head_dim = keys.get("attention.key_length", width // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if keys.get(name, head_dim) != head_dim and not (partial and name == "rope.dimension_count"):
            raise UnsupportedModelError(f"{name} {keys[name]!r} is not supported: it must be {head_dim}")


def _rope(keys: Keys) -> dict[str, Any]:
    """Return the parameters of the rotary embedding."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base", 10000.0)}
    # The same defaults as in llama.cpp.
    kind = keys.get("rope.scaling.type", "linear")
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 1.0))
    if keys.get("rope.scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModelError("rope.scaling.attn_factor is not supported (1 is)")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(f"rope.scaling.type {kind!r} is not supported (linear and yarn are)")
    if kind == "none" or factor == 1.0:
        return found
    found |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        found |= {
            "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
            "beta_fast": keys.get("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.get("rope.scaling.yarn_beta_slow", 1.0),
        }
    return found
