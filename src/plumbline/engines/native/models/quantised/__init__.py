"""Read the formats of quantised checkpoints, one file each, chosen by `quantization_config.quant_method`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import Json
from plumbline.engines.native.models.quantised import awq, compressed, fp8, gptq, mxfp4, torchao
from plumbline.engines.native.models.stored import StoredFormat

__all__ = ["FORMATS", "read_format"]

FORMATS: Mapping[str, Callable[[Json], StoredFormat]] = MappingProxyType(
    {
        "fp8": fp8.read,
        "compressed-tensors": compressed.read,
        "gptq": gptq.read,
        "awq": awq.read,
        "mxfp4": mxfp4.read,
        "torchao": torchao.read,
    }
)
"""The readers of `quantization_config`, by its `quant_method`."""


def read_format(config: object) -> StoredFormat:
    """Read a `quantization_config`.

    Raises:
        UnsupportedModelError: the format or one of its fields is not supported; the message names it.
    """
    if not isinstance(config, dict):
        raise UnsupportedModelError(f"quantization_config must be an object, not {config!r}")
    method = config.get("quant_method")
    if not isinstance(method, str) or method not in FORMATS:
        raise UnsupportedModelError(
            f"quantization_config.quant_method {method!r} is not supported ({', '.join(FORMATS)} are)"
        )
    return FORMATS[method]({name: value for name, value in config.items() if name != "quant_method"})
