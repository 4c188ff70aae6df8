"""Read log-probabilities off logit tensors, for every engine that computes with torch."""

from __future__ import annotations

import torch
from torch import Tensor

from plumbline.engines.port import TokenLogprob

__all__ = ["logprob_rows"]


def logprob_rows(logprobs: Tensor, chosen: Tensor, tops: list[int]) -> list[TokenLogprob]:
    """Turn rows of log-probabilities into entries.

    Args:
        logprobs: fp32 [num_rows, vocab], normalised.
        chosen: int64 [num_rows], the token whose logprob each entry states.
        tops: how many alternatives each row wants.
    """
    values = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
    ids = chosen.tolist()
    most = min(max(tops, default=0), logprobs.shape[-1])
    if most:
        top = torch.topk(logprobs, most, dim=-1)
        top_ids, top_values = top.indices.tolist(), top.values.tolist()
    else:
        top_ids = top_values = [[] for _ in ids]
    return [
        TokenLogprob(token, value, tuple(zip(row_ids[:count], row_values[:count], strict=True)))
        for token, value, count, row_ids, row_values in zip(
            ids, values, tops, top_ids, top_values, strict=True
        )
    ]
