"""List the models that can be served, by the engine that `--engine auto` runs them on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from plumbline.engines.native.models.families import FAMILIES, WRAPPED
from plumbline.engines.native.models.gguf import ARCHITECTURES
from plumbline.engines.native.models.quantised import FORMATS

__all__ = ["lacking", "overview"]


def overview() -> str:
    """Return all that can be served as text."""
    return "\n".join(_lines())


_REASONS: dict[str, str] = {
    "a state besides keys and values, or an arrangement of layers with one, that no family of ours has": (
        "bailing_hybrid falcon_mamba kimi_linear lfm3 mamba mamba2 minimax "
        "recurrent_gemma rwkv xlstm zamba zamba2"
    ),
    "attention to a choice of keys": "axk2 deepseek_v4 hy_v4",
    "images, audio or video": (
        "aria_text emu3 fuyu gemma3n gemma4_unified git got_ocr2 mllama moshi musicgen "
        "phi4_multimodal trocr whisper"
    ),
}
"""What models need that our engine does not have, by their types."""


_NO_FAMILY = "a description of the model"
"""What all others need."""


def _lines() -> Iterator[str]:
    width = max(map(len, FAMILIES)) + 2
    yield "Our engine (--engine plumbline), from safetensors, by the model_type of config.json:"
    yield from (f"  {name:{width}}{family.title}" for name, family in FAMILIES.items())
    yield f"Their weights may be quantised; quant_method in config.json is one of: {', '.join(FORMATS)}."
    yield f"It reads GGUF files with general.architecture {', '.join(ARCHITECTURES)}."
    yield ""
    yield "It reads images for these models of images and text:"
    yield from (f"  {name:{width}}{model.title}" for name, model in WRAPPED.items())
    yield ""
    yield "llama.cpp (--engine llama_cpp): GGUF files of every family that llama.cpp runs. --engine auto takes ours for"
    yield "those that ours reads, too, where it is faster."
    yield ""
    yield "vLLM (--engine vllm) where it is installed, or else transformers (--engine transformers): all others. These"
    yield "are the further language models of transformers, with what our engine lacks for them:"
    for reason, names in lacking().items():
        yield from _wrapped(f"{reason}: {', '.join(names)}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def lacking() -> dict[str, list[str]]:
    """Return the types of causal language models that transformers has and our engine does not, by the reason."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    further = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - FAMILIES.keys() - WRAPPED.keys()
    found = {reason: sorted(further & set(names.split())) for reason, names in _REASONS.items()}
    found[_NO_FAMILY] = sorted(further - {name for names in found.values() for name in names})
    return found
