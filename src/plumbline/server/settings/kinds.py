"""Define the ranges that several options share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

__all__ = ["Amount", "AtLeastOne", "Count", "Positive", "Texts"]

Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Texts = tuple[str, ...]
