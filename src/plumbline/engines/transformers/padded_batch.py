"""Keep the key-value caches of several requests of a transformers model in one, padded on the left.

    request a   . . . . k k k k k
    request b   k k k k k k k k k
    request c   . . . . . . . k k

A step then computes one token for all rows at once. Positions and an attention mask mark the padding for the model.
Only caches of plain attention can be joined: windows and recurrent states have no place for padding.
"""

from __future__ import annotations

import inspect
from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from plumbline.engines.request import RequestState

__all__ = ["PaddedBatch", "token_bytes"]


def token_bytes(cache: Any) -> int:
    """Return how many bytes a token takes in a cache of one row; 0 if unknown."""
    layers = getattr(cache, "layers", ())
    if not layers or not all(_is_plain(layer) for layer in layers):
        return 0
    return sum(
        part.element_size() * part.shape[1] * part.shape[3]
        for layer in layers
        for part in (layer.keys, layer.values)
    )


class PaddedBatch:
    """The rows of a batch and their cache.

    Args:
        hf_model: the model; it takes part if its `forward` knows positions and an attention mask.
    """

    def __init__(self, hf_model: Any) -> None:
        self._model = hf_model
        known = inspect.signature(hf_model.forward).parameters
        self._possible = {"position_ids", "attention_mask", "past_key_values"} <= known.keys()
        self._cache: DynamicCache | None = None
        self.rows: list[RequestState] = []
        self._offsets: dict[str, int] = {}
        """By request: what its positions differ by from the indices of its tokens."""

    @property
    def longest(self) -> int:
        """Cached tokens of the longest row, which is the width of the cache."""
        return 0 if self._cache is None else int(self._cache.get_seq_length())

    def join(self, state: RequestState, cache: Any, offset: int = 0) -> bool:
        """Take a request over with its own cache of all its tokens but the last, and the offset of its positions.

        Returns False, and changes nothing, if its cache cannot be padded.
        """
        if not self._possible or not isinstance(cache, DynamicCache):
            return False
        if not all(_is_plain(layer) for layer in cache.layers):
            return False
        if self._cache is None:
            self._cache = cache
        else:
            width = max(self.longest, int(cache.get_seq_length()))
            for layer, new in zip(self._cache.layers, cache.layers, strict=True):
                layer.keys = torch.cat([_padded(layer.keys, width), _padded(new.keys, width)])
                layer.values = torch.cat([_padded(layer.values, width), _padded(new.values, width)])
        self.rows.append(state)
        self._offsets[state.request.request_id] = offset
        return True

    def part(self, state: RequestState) -> tuple[Any, int]:
        """Return a copy of what the batch has of a request: the arguments of `join`."""
        assert self._cache is not None, "the request is in the batch"
        index = next(index for index, row in enumerate(self.rows) if row is state)
        cache = copy(self._cache)
        cache.layers = []
        for layer in self._cache.layers:
            own = copy(layer)
            own.keys = layer.keys[index : index + 1, :, 1 - state.num_tokens :].contiguous()
            own.values = layer.values[index : index + 1, :, 1 - state.num_tokens :].contiguous()
            cache.layers.append(own)
        return cache, self._offsets[state.request.request_id]

    def leave(self, gone: set[str]) -> None:
        """Remove requests, and the padding that only they needed."""
        kept = [index for index, row in enumerate(self.rows) if row.request.request_id not in gone]
        if len(kept) == len(self.rows):
            return
        for request_id in gone:
            self._offsets.pop(request_id, None)
        self.rows = [self.rows[index] for index in kept]
        if not kept or self._cache is None:
            self._cache = None
            return
        width = max(row.num_tokens - 1 for row in self.rows)
        chosen = torch.tensor(kept)
        for layer in self._cache.layers:
            layer.keys = layer.keys[chosen, :, -width:].contiguous()
            layer.values = layer.values[chosen, :, -width:].contiguous()

    def forward(self) -> Tensor:
        """Compute the next token of every row; returns logits fp32 [rows, V]."""
        device = self._model.device
        lengths = torch.tensor([row.num_tokens for row in self.rows], device=device)
        offsets = torch.tensor([self._offsets[row.request.request_id] for row in self.rows], device=device)
        width = self.longest + 1
        mask = torch.arange(width, device=device) >= (width - lengths).unsqueeze(1)
        output = self._model(
            input_ids=torch.tensor([[row.token_ids[-1]] for row in self.rows], device=device),
            attention_mask=mask.long(),
            position_ids=(lengths - 1 + offsets).unsqueeze(1),
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits


def _is_plain(layer: Any) -> bool:
    return type(layer) is DynamicLayer and bool(layer.is_initialized)


def _padded(states: Tensor, width: int) -> Tensor:
    """Pad keys or values [B, H, L, D] on the left of the third dimension."""
    return F.pad(states, (0, 0, width - states.shape[2], 0))
