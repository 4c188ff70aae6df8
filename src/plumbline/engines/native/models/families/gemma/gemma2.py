"""Gemma 2 and VaultGemma: scores and logits are capped, every other layer has a window."""

from __future__ import annotations

from plumbline.engines.native.models.description import ModelDescription, Placement
from plumbline.engines.native.models.families.gemma.models import windowed_model
from plumbline.engines.native.models.families.parts import FULL, SLIDING, Family, every, layer_types
from plumbline.engines.native.models.families.rope_fields import read_rope
from plumbline.engines.native.models.fields import Fields

__all__ = ["FAMILIES"]


def _gemma2(fields: Fields) -> ModelDescription:
    return _capped(fields, "both")


def _vaultgemma(fields: Fields) -> ModelDescription:
    return _capped(fields, "before")


def _capped(fields: Fields, norms: Placement) -> ModelDescription:
    types = layer_types(fields, every(fields, 2))
    rope = read_rope(fields)
    return windowed_model(fields, types, {FULL: rope, SLIDING: rope}, caps=(50.0, 30.0), norms=norms)


FAMILIES = {
    "gemma2": Family("Gemma 2", _gemma2),
    "vaultgemma": Family("VaultGemma", _vaultgemma),
}
