"""Load a model folder with transformers: as a vision-language model if its config names one, else as text only."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from plumbline.engines.transformers.vision import load_processor

__all__ = ["LoadedModel", "TransformersError", "load_hf_model"]

_log = logging.getLogger("plumbline.engines")

_QUANTISERS = {
    "aqlm": "aqlm[gpu,cpu]",
    "auto-round": "auto-round",
    "awq": "gptqmodel",
    "bitnet": "accelerate",
    "bitsandbytes": "bitsandbytes accelerate",
    "compressed-tensors": "compressed-tensors accelerate",
    "eetq": "eetq accelerate",
    "fbgemm_fp8": "fbgemm-gpu accelerate",
    "fp8": "accelerate",
    "gptq": "gptqmodel optimum",
    "higgs": "flute-kernel fast_hadamard_transform",
    "hqq": "hqq",
    "mxfp4": "kernels accelerate",
    "quanto": "optimum-quanto accelerate",
    "quark": "amd-quark",
    "spqr": "spqr_quant[gpu]",
    "torchao": "torchao",
    "vptq": "vptq",
}
"""The packages that transformers needs for checkpoints of a quantiser."""


_SHOWN = 8
"""Names of tensors in a message."""


class TransformersError(ValueError):
    """transformers cannot load the model; the message states what to do."""


class LoadedModel(NamedTuple):
    """A model, and its processor if it reads images."""

    hf_model: Any
    processor: Any | None


def load_hf_model(
    folder: Path, *, dtype: torch.dtype | None, device: torch.device | str, trust_remote_code: bool
) -> LoadedModel:
    """Load a model folder.

    Args:
        folder: the folder.
        dtype: type of the weights; None takes the config's type.
        device: where they go.
        trust_remote_code: whether to run Python code of the folder.

    Raises:
        TransformersError: a package is missing, the folder has code and is not trusted, or transformers does not know
            the model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(folder, **options)
        reads_images = _reads_images(config)
        quantiser = getattr(config, "quantization_config", None)
        if quantiser is not None:
            options["device_map"] = {"": device}  # Quantised weights cannot be moved later.
        auto = AutoModelForImageTextToText if reads_images else AutoModelForCausalLM
        hf_model, found = auto.from_pretrained(
            folder, dtype=dtype if dtype is not None else "auto", output_loading_info=True, **options
        )
        if quantiser is None:
            hf_model = hf_model.to(device)
    except (ImportError, ValueError, OSError, RuntimeError) as error:
        raise _explained(folder, error, trust_remote_code) from error
    _check_tensors(folder, found, quantiser is not None)
    processor = None
    if reads_images:
        processor = load_processor(folder, config, trust_remote_code=trust_remote_code)
    return LoadedModel(hf_model, processor)


def _check_tensors(folder: Path, found: Mapping[str, Any], is_quantised: bool) -> None:
    """Name the tensors that nothing uses, and refuse a model without some of its weights, which would be random.

    Quantisers of some formats list what they compute themselves as missing, so there it is only named.

    Raises:
        TransformersError: see above.
    """
    missing, unused = (_some(found.get(name) or ()) for name in ("missing_keys", "unexpected_keys"))
    if unused:
        _log.warning("tensors of the checkpoint that are not used: %s", unused)
    if missing and not is_quantised:
        raise TransformersError(f"the weights in {folder} lack tensors of this model: {missing}")
    if missing:
        _log.warning("tensors that the checkpoint lacks: %s", missing)


def _some(names: Collection[str]) -> str:
    shown = ", ".join(f"{name:.120}" for name in sorted(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _reads_images(config: Any) -> bool:
    """Return whether the weights are a vision-language model's; some configs also serve language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as MAPPING

    named = set(getattr(config, "architectures", None) or ())
    if type(config) in MAPPING:
        classes = MAPPING[type(config)]
        known = classes if isinstance(classes, tuple) else (classes,)
        return bool(named & {found.__name__ for found in known})
    return "AutoModelForImageTextToText" in (getattr(config, "auto_map", None) or {})


def _explained(folder: Path, error: Exception, trusted: bool) -> TransformersError:
    """Return an error that names what to install or which option to give."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if config.get("auto_map") and not trusted and "trust_remote_code" in str(error):
        return TransformersError(
            "this model comes with Python code. If you trust it, give --trust-remote-code; the code then runs with all "
            "rights of the server."
        )
    quantisation = config.get("quantization_config") or {}
    method = quantisation.get("quant_method") or ("bitsandbytes" if "load_in_4bit" in quantisation else None)
    if method in _QUANTISERS:
        return TransformersError(
            f"this model is quantised with {method}, and transformers cannot load it here: {error}\n"
            f"It needs: pip install {_QUANTISERS[method]}"
        )
    return TransformersError(f"transformers cannot load this model: {error}")
