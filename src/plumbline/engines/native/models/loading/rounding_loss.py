"""Measure what rounding costs a model while it is loaded: the divergence from its own weights on texts of three kinds.

The perplexity of texts that short varies by several percent, and says little of a text that the model does not know.
The divergence varies less. The unrounded model is never in memory as a whole: `StreamedLinear` reads its linear layers
when they are called, once for all texts, and `StreamedStacks` the experts of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from plumbline.engines.native.models.description import ModelDescription
from plumbline.engines.native.models.transformer import Transformer
from plumbline_kernels.attention import AttentionBatch

__all__ = ["NO_TEXTS", "TEXTS", "Texts", "losses_of_rounding", "predictions", "texts_problem"]

TEXTS = {
    "English": """The lighthouse keeper wrote down the weather every morning: the wind, the height of the waves, and \
which ships had passed in the night. On the third of March he noticed that the barometer had fallen by nine points. \
By noon the harbour was empty, because the fishermen trust such numbers more than the sky. He lit the lamp early, \
cleaned the glass, and counted the seconds between two flashes, as his father had taught him. Nobody came that \
evening, but at midnight a small boat answered with a green light, and two tired sailors asked for soup and a dry \
bed. They told him that the bridge at the mouth of the river was closed, and that the mail would be late.""",
    "code": """def shortest(routes: dict[str, list[tuple[str, int]]], start: str) -> dict[str, int]:
    \"\"\"Return the length of the shortest way to each place that can be reached.\"\"\"
    found = {start: 0}
    waiting = [(0, start)]
    while waiting:
        length, place = heapq.heappop(waiting)
        if length > found[place]:
            continue
        for neighbour, distance in routes.get(place, []):
            total = length + distance
            if total < found.get(neighbour, math.inf):
                found[neighbour] = total
                heapq.heappush(waiting, (total, neighbour))
    return found
""",
    "Chinese": "昨天下午我们在河边散步，看到很多人在钓鱼。天气很好，孩子们在草地上放风筝。傍晚的时候，我们走进一家"
    "小饭馆，点了两碗牛肉面和一盘青菜。老板说，这家店是他爷爷开的，已经有六十多年了。以前这条街上都是木匠和裁缝，"
    "现在变成了书店和咖啡馆。吃完饭，雨下了起来，我们只好坐公共汽车回家。车上很挤，司机却一直很有耐心，"
    "每到一站都提醒老人慢慢下车。",
}
"""English, code and Chinese, written for this purpose."""
Texts = Mapping[str, Sequence[int]]
"""The tokens of texts, by their kinds."""
NO_TEXTS: Texts = MappingProxyType({})
_BLOCK = 16
_TOKENS = 128
"""Of each text at most."""


def texts_problem(description: ModelDescription, texts: Texts) -> str | None:
    """Return why texts cannot be tried with a model, or None if they can."""
    if not texts or not all(texts.values()):
        return "its tokenizer gives no tokens of a text"
    if (most := max(map(max, texts.values()))) >= description.vocab_size:
        return f"its tokenizer gives the token {most}, and it has {description.vocab_size}"
    return None


@torch.no_grad()  # Threads that read weights are in no mode of inference.
def predictions(model: Transformer, texts: Texts) -> dict[str, Tensor]:
    """Return the logits [R, V] after every second token of each text, fp16, because they are many."""
    cut = [ids[: min(_TOKENS, model.description.context_length)] for ids in texts.values()]
    batch = AttentionBatch.of_prompts([len(ids) for ids in cut], _BLOCK)
    tokens = torch.tensor([token for ids in cut for token in ids])
    caches = model.allocate_kv(batch.block_tables.numel(), _BLOCK, num_states=len(cut))
    hidden = model.forward(tokens, batch, caches)
    parts = hidden.split([len(ids) for ids in cut])
    return {
        kind: model.compute_logits(part[::2].contiguous()).half()
        for kind, part in zip(texts, parts, strict=True)
    }


def losses_of_rounding(whole: Mapping[str, Tensor], rounded: Mapping[str, Tensor]) -> dict[str, float]:
    """Return how many times the perplexity becomes of texts that the unrounded model writes: e to the mean divergence.

    Args:
        whole: its logits [R, V], by kinds of texts.
        rounded: those of the rounded model.
    """
    return {kind: math.exp(_divergence(whole[kind], rounded[kind])) for kind in whole}


def _divergence(whole: Tensor, rounded: Tensor) -> float:
    # By row, because all of a vocabulary are many.
    pairs = (
        (a.float().log_softmax(-1), b.float().log_softmax(-1)) for a, b in zip(whole, rounded, strict=True)
    )
    return sum(float((a.exp() * (a - b)).sum()) for a, b in pairs) / len(whole)
