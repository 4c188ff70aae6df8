"""The torch version of attention with capped scores or sinks, which torch's fused attention does not compute."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Capped"]

_SPLIT = 512
"""Keys of one product of an exact batch: products of one shape sum in one order, however many keys there are."""


class Capped(NamedTuple):
    """Attention with capped scores or sinks; see `paged_attention`."""

    softcap: float | None
    sinks: Tensor | None
    exact: bool
    """Whether a result must have the same bits in any batch and for any number of hidden keys."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Attend with one query per entry, q [N, H, hd], to its keys [N, KV, L, hd]; returns [N, H, hd]."""
        num_kv_heads = k.shape[1]
        rows = q.view(q.shape[0], num_kv_heads, -1, q.shape[2])
        sinks = None if self.sinks is None else self.sinks.view(num_kv_heads, -1, 1)
        return self._weigh(rows, k, v, mask, scale, sinks).reshape(q.shape)

    def attend_block(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Attend with queries of a chunk, q [Q, H, hd], to keys that they share [1, KV, L, hd]; returns [Q, H, hd]."""
        if self.exact:
            alone = zip(torch.split(q, 1), torch.split(mask, 1), strict=True)
            return torch.cat([self.attend(row, k, v, hidden, scale) for row, hidden in alone])
        num_queries, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[1]
        group = num_heads // num_kv_heads
        # The query heads of a key head one after the other, each with all queries.
        rows = q.view(num_queries, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
        rows = rows.reshape(1, num_kv_heads, group * num_queries, head_dim)
        sinks = self.sinks
        if sinks is not None:
            sinks = sinks.view(num_kv_heads, group, 1).repeat_interleave(num_queries, 1)
        hidden = mask.view(1, 1, num_queries, -1).repeat(1, 1, group, 1)
        out = self._weigh(rows, k, v, hidden, scale, sinks)
        return out.view(num_kv_heads, group, num_queries, head_dim).permute(2, 0, 1, 3).reshape(q.shape)

    def _weigh(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, sinks: Tensor | None
    ) -> Tensor:
        """Attend with rows q [N, KV, R, hd] to keys [N, KV, L, hd]; `mask` is [N, 1, 1 or R, L], `sinks` [KV, R, 1]."""
        if self.exact:
            missing = -k.shape[2] % _SPLIT
            k, v = (F.pad(x, (0, 0, 0, missing)) for x in (k, v))
            mask = F.pad(mask, (0, missing), value=float("-inf"))
        split = _SPLIT if self.exact else k.shape[2]
        rows = q.float()
        scores = (
            torch.cat([rows @ keys.float().transpose(-1, -2) for keys in torch.split(k, split, 2)], -1)
            * scale
        )
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh_().mul_(self.softcap)
        scores += mask.float()
        top = scores.amax(-1, keepdim=True)
        if sinks is not None:
            top = torch.maximum(top, sinks)
        weights = scores.sub_(top).exp_()
        out, total = torch.zeros_like(rows), torch.zeros_like(top)
        if sinks is not None:
            total = (sinks - top).exp_()
        for part, values in zip(torch.split(weights, split, -1), torch.split(v, split, 2), strict=True):
            out += part @ values.float()
            total = total + part.sum(-1, keepdim=True)
        return (out / total).to(q.dtype)
