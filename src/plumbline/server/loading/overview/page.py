"""Write the page of models from what is declared: `python -m plumbline.server.loading.overview.page FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plumbline.engines.native.models.description import (
    DeltaNet,
    Experts,
    Latent,
    ModelDescription,
    Selective,
    ShortConv,
)
from plumbline.engines.native.models.families import FAMILIES
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.gguf import ARCHITECTURES
from plumbline.engines.native.models.quantised import FORMATS
from plumbline.engines.native.models.support import kernels_problem
from plumbline.server.loading.overview.supported import lacking

__all__ = ["page"]

_INTRODUCTION = """\
# Models

<!-- Written by `nox -s generate` from src/plumbline/engines/native/models/families/. Do not edit. -->

`plumbline list --supported` prints this page in short. A model is recognised by the `model_type` of its
`config.json`. `--engine auto` takes our engine for the models of the first table and [another engine](engines.md) for
the rest. GGUF files run on our engine, or on llama.cpp if
[ours lacks something](native-engine.md#gguf-files-on-our-engine).

## Models of our engine

All of them run on a CPU, with compiled C++ kernels where head sizes are multiples of 32 and other widths of 16, else
with torch; and on a GPU, except where the table says otherwise, with decode steps as CUDA graphs. Weights may be
quantised: `quant_method` is one of {formats}
([kinds of each](native-engine.md#quantised-checkpoints-on-our-engine)); `mxfp4` is for experts that are one tensor,
as those of `gpt_oss`. [Adapters](adapters.md) change linear layers; they are refused for experts, for the embedding
and for the output layer.

- **layers**: attention and dense blocks where nothing is named.
- **images**: the `model_type` of models of images and text that have this text where their config names no other
  ([their images](media.md#images-on-our-engine)).
- **GGUF**: the `general.architecture` of files that our engine reads; a `llama` with experts is Mixtral.
- **refused**: fields of `config.json` that must be missing, null or false. Beyond these, every field that a model does
  not know is refused by its name, and so are values that its operations do not have.

"""
_FURTHER = """
## Models of other engines

The installed transformers, {version} here, has these causal language models besides. The engine for them is vLLM where
it is installed, else transformers; GGUF files of them run on llama.cpp.

| our engine lacks | `model_type` |
|---|---|
"""
_CONFIG: dict[str, Any] = {
    "attention_types": [[["global", "local"], 6]],
    "attn_layer_indices": [1],
    "hidden_size": 512,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "intermediate_size_mlp": 64,
    "layers_block_type": ["mamba", "attention", "moe"],
    "max_position_embeddings": 128,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 12,
    "shared_expert_intermediate_size": 64,
    "shared_intermediate_size": 64,
    "vocab_size": 128,
}
"""The fields without a default, of all families; what a family does not read has no effect here."""
_LAYER_TYPES = {
    "granitemoehybrid": ["mamba", "full_attention"] * 6,
    "lfm2": ["conv", "full_attention"] * 6,
    "lfm2_moe": ["conv", "full_attention"] * 6,
}
"""Of families that need them."""


def page() -> str:
    """Return the text of the page."""
    import transformers

    formats = ", ".join(f"`{name}`" for name in FORMATS)
    return "\n".join(
        (
            _INTRODUCTION.format(formats=formats)
            + "| models | `model_type` | layers | GGUF | images | refused |",
            "|---|---|---|---|---|---|",
            *map(_row, FAMILIES),
            _FURTHER.format(version=transformers.__version__) + "\n".join(_further()),
            "",
        )
    )


def _row(name: str) -> str:
    family = FAMILIES[name]
    fields = Fields({**_CONFIG, "model_type": name, "layer_types": _LAYER_TYPES.get(name)})
    description = family.describe(fields)
    files = (kind for kind, architecture in ARCHITECTURES.items() if architecture.model_type == name)
    images = "" if family.wrapped is None else f"`{family.wrapped.model_type}`"
    cells = (
        family.title, f"`{name}`", ", ".join(_layers(description)),
        _named(files), images, _named(sorted(fields.refused)),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def _layers(description: ModelDescription) -> Iterator[str]:
    """Name what layers have besides attention and dense blocks."""
    mixers = [layer.mixer for layer in description.layers]
    if any(isinstance(mixer, Latent) for mixer in mixers):
        yield "latent attention"
    if any(isinstance(mixer, DeltaNet | ShortConv | Selective) for mixer in mixers):
        yield "a state"
    if any(isinstance(layer.feed_forward, Experts) for layer in description.layers):
        yield "experts"
    if kernels_problem(description) is not None:
        yield "not on a GPU"


def _named(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _further() -> Iterator[str]:
    for reason, names in lacking().items():
        yield f"| {reason} | {_named(names)} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), "utf-8")
