"""Gemma 4, text: a factor after each layer, and the blocks of `gemma4_blocks`.

E2B and E4B give every layer a part of a second embedding of the token, and their last layers attend to the keys of
earlier ones. In 26B-A4B experts stand beside the dense block.
"""

from __future__ import annotations

from dataclasses import replace

from plumbline.engines.native.models.description import (
    LayerDescription,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families.gemma.gemma4_blocks import (
    feed_forwards,
    layers_with_keys,
    mixers,
)
from plumbline.engines.native.models.families.gemma.models import AROUND
from plumbline.engines.native.models.families.parts import FULL, Family, Wrapped, every, layer_types, model
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields

__all__ = ["FAMILIES"]

_NAMES = replace(
    AROUND,
    router="router.proj",
    expert_gate_up=("experts.gate_up_proj",),
    expert_down="experts.down_proj",
    shared_gate_up=AROUND.gate_up,
    shared_down=AROUND.down,
)


def _gemma4(fields: Fields) -> ModelDescription:
    # Which tokens of images attend to each other; the text alone is causal.
    if (ways := fields.get("use_bidirectional_attention")) not in (None, "vision"):
        raise UnsupportedModelError(f"use_bidirectional_attention {ways!r:.{MOST_SHOWN}} is not supported")
    vocab, width = fields.integer("vocab_size"), fields.get("hidden_size_per_layer_input", 256)
    if (
        width
        and fields.integer("hidden_size_per_layer_input", width)
        and (fields.integer("vocab_size_per_layer_input", vocab) != vocab)
    ):
        raise UnsupportedModelError("vocab_size_per_layer_input must be vocab_size")
    fields.without_effect("vocab_size_per_layer_input use_double_wide_mlp")
    types = (*layer_types(fields, every(fields, 6))[:-1], FULL)
    own = layers_with_keys(fields, types)
    first, last = feed_forwards(fields, shares_keys=own < len(types))
    layers = (
        LayerDescription(mixer=mixer, feed_forward=first if layer < own else last, norms="both", scaled=True)
        for layer, mixer in enumerate(mixers(fields, types, own))
    )
    return model(
        fields,
        layers,
        tied=True,
        embedding_scale=fields.integer("hidden_size") ** 0.5,
        token_inputs=width,
        logits_softcap=fields.number("final_logit_softcapping", 0.0) or None,
        names=_NAMES,
    )


FAMILIES = {
    "gemma4_text": Family(
        "Gemma 4 (text)", _gemma4, Wrapped("gemma4", "Gemma 4, with images; audio and videos are refused", {})
    ),
}
