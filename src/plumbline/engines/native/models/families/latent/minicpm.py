"""MiniCPM 3: the latent attention of DeepSeek V2, factors on embeddings, residuals and logits; dense."""

from __future__ import annotations

from plumbline.engines.native.models.description import ModelDescription
from plumbline.engines.native.models.families.latent.attention import latent_attention
from plumbline.engines.native.models.families.parts import Family, alike, dense, model, rms
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _minicpm3(fields: Fields) -> ModelDescription:
    count, hidden = fields.integer("num_hidden_layers"), fields.integer("hidden_size")
    feed_forward = dense(fields, bias=fields.flag("mlp_bias"))
    layers, norm = alike(fields, latent_attention(fields, interleaved=False), feed_forward), rms(fields)
    return model(
        fields,
        layers,
        norm,
        tied=True,
        embedding_scale=fields.number("scale_emb", 12.0),
        residual_scale=fields.number("scale_depth", 1.4) / count**0.5,
        logits_scale=fields.number("dim_model_base", 256.0) / hidden,
    )


FAMILIES = {"minicpm3": Family("MiniCPM 3", _minicpm3)}
