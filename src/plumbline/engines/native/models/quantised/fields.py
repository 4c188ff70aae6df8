"""Check the fields of a `quantization_config`."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import Json

__all__ = ["check", "positive"]


def check(config: Json, where: str, without_effect: str, **accepted: tuple[object, ...]) -> None:
    """Check that each field is null, or has a supported value, or has no effect.

    Args:
        config: the fields.
        where: what their names begin with in messages.
        without_effect: names of fields that do not change what the weights are, with spaces.
        accepted: the supported values by field.

    Raises:
        UnsupportedModelError: a field is not known, or has another value.
    """
    ignored = without_effect.split()
    values: Mapping[str, tuple[object, ...]] = accepted
    for name, value in config.items():
        if value is None or name in ignored:
            continue
        if name not in values:
            raise UnsupportedModelError(
                f"{where}.{name} is not known; remove it if it does not change the weights"
            )
        if value not in values[name]:
            shown = ", ".join(map(repr, values[name])) or "only null"
            raise UnsupportedModelError(f"{where}.{name} {value!r} is not supported ({shown})")


def positive(value: object, name: str) -> int:
    """Return a positive integer.

    Raises:
        UnsupportedModelError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UnsupportedModelError(f"{name} must be a positive integer, not {value!r}")
    return value
