"""List the models that can be served, by the engine that `--engine auto` runs them on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from plumbline.engines.native.models.families import FAMILIES

__all__ = ["overview", "table"]


def table() -> str:
    """Return the families of our engine as a table of docs/engines.md."""
    rows = (f"| `{name}` | {family.title} |" for name, family in FAMILIES.items())
    return "\n".join(("| `model_type` | models |", "|---|---|", *rows))


def overview() -> str:
    """Return all that can be served as text."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    width = max(map(len, FAMILIES)) + 2
    yield "Our engine (--engine plumbline), from safetensors, by the model_type of config.json:"
    yield from (f"  {name:{width}}{family.title}" for name, family in FAMILIES.items())
    yield ""
    yield "llama.cpp (--engine llama_cpp): GGUF files of every family that llama.cpp runs."
    yield ""
    yield "vLLM (--engine vllm) where it is installed, or else transformers (--engine transformers): all others."
    yield "These are the further language models of transformers; both engines also run models of images and text."
    yield from textwrap.wrap(
        ", ".join(_further()),
        width=100,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


def _further() -> list[str]:
    """Return the types of causal language models that transformers has and our engine does not."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - FAMILIES.keys())
