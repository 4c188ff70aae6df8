"""Read the language model of vision-language models: their config contains its config.

`vision/` reads their images. Where a tower or a processor is not supported only the text is run, so `--engine auto`
leaves such a model to an engine that takes images. Configs of earlier versions of transformers leave out what is a
default of the type.
"""

from __future__ import annotations

from typing import Any

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.families.parts import Wrapped
from plumbline.engines.native.models.fields import Fields

__all__ = ["text_of"]

_OUTSIDE = (
    "audio_config audio_token_id boa_token_id boi_token_id eoa_token_index eoi_token_id "
    "boi_token_index eoa_token_id eoi_token_index ignore_index image_seq_length image_token_id image_token_index "
    "mm_tokens_per_image multimodal_projector_bias projector_hidden_act spatial_merge_size tie_word_embeddings "
    "video_token_id vision_config vision_end_token_id vision_feature_layer vision_feature_select_strategy "
    "vision_soft_tokens_per_image vision_start_token_id vision_token_id vocab_size"
)
"""Fields of images, and whether the output layer is the embedding, which the checkpoint shows."""
_OF_TEXT = ("tie_word_embeddings", "vocab_size")
"""Those among them that a text without a config of its own has there."""


def text_of(fields: Fields, wrapped: Wrapped, model_type: str) -> dict[str, Any]:
    """Return the config of the language model of a vision-language model.

    Args:
        fields: of the whole config.
        wrapped: the type of the model.
        model_type: of the text where its config does not say it.

    Raises:
        UnsupportedModelError: the config has fields that are not known, or none of a text.
    """
    found = fields.get("text_config")
    fields.without_effect(_OUTSIDE)
    if found is None and wrapped.is_flat:
        beside = {name: fields.get(name) for name in _OF_TEXT}
        found = fields.take_rest() | {name: value for name, value in beside.items() if value is not None}
    if not isinstance(found, dict):
        raise UnsupportedModelError("config.json has no text_config")
    if wrapped.is_flat:
        # Configs that were written again have the fields of the text twice.
        fields.without_effect(*found)
    kind = found.get("model_type", model_type)
    text = {**(wrapped.defaults if kind == model_type else {}), **found, "model_type": kind}
    # The type of the weights is that of the whole; some configs have another one inside, which nothing reads.
    if (dtype := fields.get("dtype", fields.get("torch_dtype"))) is not None:
        text["dtype"] = dtype
    for name in ("eos_token_id", "quantization_config"):
        if (value := fields.get(name)) is not None and text.get(name) is None:
            text[name] = value
    fields.finish()
    return text
