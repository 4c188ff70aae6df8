"""Measure what rounding costs a model while it is loaded: the divergence from its own weights on a text.

The perplexity of a text that short varies by several percent, and says little of a text that the model does not know.
The divergence varies less. The unrounded model is never in memory as a whole: `StreamedLinear` reads its linear layers
when they are called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from plumbline.engines.native.models.description import Attention, Dense, ModelDescription
from plumbline.engines.native.models.transformer import Transformer
from plumbline_kernels.attention import AttentionBatch

__all__ = ["TEXT", "can_measure", "loss_of_rounding", "predictions"]

TEXT = """The lighthouse keeper wrote down the weather every morning: the wind, the height of the waves, and which \
ships had passed in the night. On the third of March he noticed that the barometer had fallen by nine points.

def shortest(routes: dict[str, list[tuple[str, int]]], start: str) -> dict[str, int]:
    found = {start: 0}
    waiting = [(0, start)]
    while waiting:
        length, place = heapq.heappop(waiting)

昨天下午我们在河边散步，看到很多人在钓鱼。天气很好，孩子们在草地上放风筝。"""
"""English, code and Chinese, written for this purpose."""
_BLOCK = 16
_TOKENS = 192
"""Of the text at most."""


def can_measure(description: ModelDescription, ids: Sequence[int]) -> bool:
    """Return whether a text can be tried: experts would be in memory as a whole, and states need sequences."""
    return (
        bool(ids)
        and max(ids) < description.vocab_size
        and all(
            isinstance(layer.mixer, Attention) and isinstance(layer.feed_forward, Dense)
            for layer in description.layers
        )
    )


@torch.no_grad()  # Threads that read weights are in no mode of inference.
def predictions(model: Transformer, ids: Sequence[int]) -> Tensor:
    """Return the logits [R, V] after every second token of a text."""
    ids = ids[: min(_TOKENS, model.description.context_length)]
    batch = AttentionBatch.of_one(len(ids), _BLOCK)
    hidden = model.forward(torch.tensor(ids), batch, model.allocate_kv(batch.block_tables.shape[1], _BLOCK))
    return model.compute_logits(hidden[::2].contiguous())


def loss_of_rounding(whole: Tensor, rounded: Tensor) -> float:
    """Return how many times the perplexity becomes of texts that the unrounded model writes: e to the mean divergence.

    Args:
        whole: its logits [R, V].
        rounded: those of the rounded model.
    """
    # By row, because all of a vocabulary are many.
    pairs = ((a.log_softmax(-1), b.log_softmax(-1)) for a, b in zip(whole, rounded, strict=True))
    return math.exp(sum(float((a.exp() * (a - b)).sum()) for a, b in pairs) / len(whole))
