"""Read log-probabilities off logit tensors, for every engine that computes with torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.port.engine import TokenLogprob

__all__ = ["log_softmax", "logprob_rows"]

_ALIGNED = 4
"""Numbers that a GPU loads at once."""


def log_softmax(logits: Tensor) -> Tensor:
    """Return the log-probabilities of rows of logits, fp32 [num_rows, vocab].

    On a GPU torch adds up a row in an order that depends on its address, so that rows are padded to be aligned.
    """
    missing = -logits.shape[1] % _ALIGNED
    if not missing or not logits.is_cuda:
        return torch.log_softmax(logits, dim=-1)
    return torch.log_softmax(F.pad(logits, (0, missing), value=float("-inf")), dim=-1)[:, :-missing]


def logprob_rows(
    logprobs: Tensor,
    chosen: Tensor,
    tops: list[int],
    *,
    further: Sequence[Sequence[int]] | None = None,
    ranks: bool = False,
) -> list[TokenLogprob]:
    """Turn rows of log-probabilities into entries.

    Args:
        logprobs: fp32 [num_rows, vocab], normalised.
        chosen: int64 [num_rows], the token whose logprob each entry states.
        tops: how many alternatives each row wants.
        further: tokens that each row wants as alternatives too, whatever their rank. Then the chosen token is one.
        ranks: count for each chosen token how many are more likely.
    """
    chosen_values = logprobs.gather(1, chosen[:, None])
    ids, values = chosen.tolist(), chosen_values[:, 0].tolist()
    places = ((logprobs > chosen_values).sum(-1) + 1).tolist() if ranks else [0] * len(ids)
    most = min(max(tops, default=0), logprobs.shape[-1])
    found: list[tuple[tuple[int, float], ...]] = [()] * len(ids)
    if most:
        top = torch.topk(logprobs, most, dim=-1)
        rows = zip(top.indices.tolist(), top.values.tolist(), tops, strict=True)
        found = [tuple(zip(i[:count], v[:count], strict=True)) for i, v, count in rows]
    for row, wanted in enumerate(further or ()):
        known = {token for token, _ in found[row]}
        more = [token for token in dict.fromkeys((ids[row], *wanted)) if token not in known]
        if wanted and more:
            found[row] += tuple(zip(more, logprobs[row, more].tolist(), strict=True))
    return [TokenLogprob(*entry) for entry in zip(ids, values, found, places, strict=True)]
