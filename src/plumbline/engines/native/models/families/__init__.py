"""Read the `config.json` of a model family into a description, one function for each family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from plumbline.base.end_tokens import EndTokenError, folder_ends
from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.families import (
    classic,
    dense,
    experts,
    gemma,
    hybrid,
    latent,
    sigmoid,
)
from plumbline.engines.native.models.families.parts import Family, Wrapped
from plumbline.engines.native.models.families.wrapped import text_of
from plumbline.engines.native.models.fields import Fields, Json
from plumbline.engines.native.models.quantised import read_format

__all__ = ["FAMILIES", "WRAPPED", "describe", "read_description"]

FAMILIES: dict[str, Family] = {
    name: family
    for kind in (dense, classic, gemma, experts, sigmoid, latent, hybrid)
    for name, family in kind.FAMILIES.items()
}
"""The families that the engine runs, by `model_type`."""
WRAPPED: dict[str, Wrapped] = {
    family.wrapped.model_type: family.wrapped for family in FAMILIES.values() if family.wrapped is not None
}
"""The vision-language models whose language model the engine runs, by `model_type`."""
_TEXTS = {family.wrapped.model_type: name for name, family in FAMILIES.items() if family.wrapped is not None}
"""The `model_type` of their text where their config does not say it."""


def describe(config: Json) -> ModelDescription:
    """Read the contents of a `config.json`.

    Raises:
        UnsupportedModelError: the model is of another family or uses a feature that is not implemented.
    """
    if not isinstance(config, Mapping):
        raise UnsupportedModelError("config.json must be an object")
    fields = Fields(config)
    with fields.readable():
        if (wrapped := WRAPPED.get(fields.model_type)) is not None:
            text = text_of(fields, wrapped, _TEXTS[wrapped.model_type])
            return replace(describe(text), is_text_of_more=True)
        return _describe(fields)


def _describe(fields: Fields) -> ModelDescription:
    family = FAMILIES.get(fields.model_type)
    if family is None:
        raise UnsupportedModelError(
            f"model_type {fields.get('model_type')!r:.80} is not supported; `plumbline list --supported` lists "
            "those that are, and the transformers engine runs others"
        )
    stored = fields.get("quantization_config")
    description = family.describe(fields)
    fields.finish()
    return description if stored is None else replace(description, stored=read_format(stored))


def read_description(folder: Path) -> ModelDescription:
    """Describe a model folder; its ends of sequence are those that any file of it names.

    Raises:
        UnsupportedModelError: see `describe`.
    """
    description = describe(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    try:
        ends = folder_ends(folder)
    except EndTokenError as error:
        raise UnsupportedModelError(str(error)) from error
    return replace(description, eos_token_ids=frozenset(end for end in ends if end < description.vocab_size))
