"""Read the text of models of images and text: their config has that of the text inside.

`vision/` reads the images of some types. Of the others only the text is run, so `--engine auto` leaves such a model to
an engine that takes images. Configs of earlier versions of transformers leave out what is a default of the type.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import Fields, Json

__all__ = ["WRAPPED", "text_of"]

_OUTSIDE = (
    "audio_config audio_token_id boa_token_id boi_token_id eoa_token_index eoi_token_id "
    "boi_token_index eoi_token_index ignore_index image_seq_length image_token_id image_token_index "
    "mm_tokens_per_image multimodal_projector_bias projector_hidden_act spatial_merge_size tie_word_embeddings "
    "video_token_id vision_config vision_end_token_id vision_feature_layer vision_feature_select_strategy "
    "vision_start_token_id vocab_size"
)
"""Fields of images, and whether the output layer is the embedding, which the checkpoint shows."""


class Wrapped(NamedTuple):
    """A type of models of images and text."""

    title: str
    text: str
    """The `model_type` of the text if its config does not say it."""
    defaults: Json
    """The fields of such a text."""


WRAPPED = {
    "gemma3": Wrapped(
        "Gemma 3 4B, 12B and 27B, with images by SigLIP",
        "gemma3_text",
        {
            "head_dim": 256,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "max_position_embeddings": 131072,
            "num_attention_heads": 8,
            "num_hidden_layers": 26,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "vocab_size": 262208,
        },
    ),
    "gemma4": Wrapped("the text of Gemma 4", "gemma4_text", {}),
    "llama4": Wrapped("the text of Llama 4", "llama4_text", {}),
    "llava": Wrapped(
        "LLaVA 1.5 and others of its kind, with images by CLIP or SigLIP",
        "llama",
        {
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_position_embeddings": 2048,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "rms_norm_eps": 1e-06,
            "vocab_size": 32000,
        },
    ),
    "mistral3": Wrapped(
        "the text of Mistral Small 3.1 and 3.2, Ministral 3",
        "mistral",
        {
            "head_dim": 128,
            "hidden_size": 5120,
            "intermediate_size": 32768,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 1000000000.0,
            "vocab_size": 131072,
        },
    ),
    "qwen3_5": Wrapped("the text of Qwen 3.5, dense", "qwen3_5_text", {}),
    "qwen3_5_moe": Wrapped("the text of Qwen 3.5 with experts", "qwen3_5_moe_text", {}),
}
"""The models whose text the engine runs, by `model_type`."""


def text_of(config: Json) -> dict[str, Any]:
    """Return the config of the text of a model of images and text.

    Raises:
        UnsupportedModelError: the config has fields that are not known, or none of a text.
    """
    fields = Fields(config)
    wrapped = WRAPPED[fields.model_type]
    found = fields.get("text_config")
    if not isinstance(found, dict):
        raise UnsupportedModelError("config.json has no text_config")
    fields.without_effect(_OUTSIDE)
    kind = found.get("model_type", wrapped.text)
    text = {**(wrapped.defaults if kind == wrapped.text else {}), **found, "model_type": kind}
    for name in ("dtype", "torch_dtype", "eos_token_id", "quantization_config"):
        if (value := fields.get(name)) is not None and text.get(name) is None:
            text[name] = value
    fields.finish()
    return text
