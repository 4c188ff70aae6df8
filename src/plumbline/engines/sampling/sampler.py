"""Draw one token per row of logits, with logprobs.

The order is that of `SamplingParams`: bias and bans, penalties, processors, grammar mask, temperature, top_k, top_p,
min_p, one draw. The kernels do the arithmetic; this module decides which rows need which operation. A row without bias,
penalties, bans, grammar or logprobs costs nothing beyond the draw. Rows with a sampler chain are filtered one by one
(`engines.filters.chain`) and drawn apart from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plumbline.engines.request import RequestState
from plumbline.engines.sampling.logprobs import log_softmax, logprob_rows
from plumbline.engines.sampling.masks import StepMasks
from plumbline.engines.sampling.rows import SamplingRows, upload
from plumbline.port.engine import SamplingParams, TokenLogprob
from plumbline_kernels.cpu.library import Library
from plumbline_kernels.sampling import apply_bitmask, apply_penalties, sample

__all__ = ["Sampler", "TokensInFlight"]

_NEVER = float("-inf")


class TokensInFlight:
    """Drawn tokens that a device may not have computed yet.

    Args:
        token_ids: int64 [rows], on the device.
    """

    def __init__(self, token_ids: Tensor) -> None:
        # Where no token could be drawn, any is computed with; the request ends when the host knows.
        self.token_ids = token_ids.clamp(min=0)
        self._host = token_ids
        self._arrived: Any = None
        if token_ids.is_cuda:
            self._host = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=True)
            self._host.copy_(token_ids, non_blocking=True)
            cuda: Any = torch.cuda
            self._arrived = cuda.Event()
            self._arrived.record()

    def wait(self) -> NDArray[np.int64]:
        """Return the tokens when the device has computed them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        token_ids: NDArray[np.int64] = self._host.numpy()
        return token_ids


@dataclass(slots=True)
class _RowFilter:
    """Tensors that change the logits of one request; they live as long as its slot."""

    bias: tuple[Tensor, Tensor] | None
    banned: Tensor | None
    """bool [vocab]; True where a token may never be drawn."""
    stop_ids: Tensor | None
    """Banned until the output is long enough for `min_tokens`."""
    prompt_mask: Tensor | None
    counts: Tensor | None
    """int32 [vocab], how often each token was generated; None without penalties."""
    num_counted: int
    """The tokens of the request, prompt included, up to which `counts` counts."""


class Sampler:
    """Draw tokens, with per-request filters kept by slot. Only the engine thread may use it."""

    def __init__(self, vocab_size: int, device: torch.device, library: Library | None = None) -> None:
        """Draw on a device; with a library of compiled kernels, by them."""
        self._vocab_size = vocab_size
        self._device = device
        self._sample = sample if library is None else library.sample
        self._filters: dict[int, _RowFilter] = {}
        self._chains: set[int] = set()
        """Slots of requests with a sampler chain."""
        self._processed: set[int] = set()
        """Slots of requests with processors of logits."""
        self._bound: set[int] = set()
        """Slots of requests for which the host must know a token before the next one is drawn."""

    @property
    def is_free(self) -> bool:
        """Whether all requests can draw their next tokens before the last ones are known to the host."""
        return not self._bound

    def admit(self, state: RequestState) -> None:
        """Build the filters of a request with a slot; token counts include what it has generated already."""
        sampling = state.sampling
        if state.chain is not None:
            self._chains.add(state.slot)
        penalised = state.chain is None and _penalised(sampling)
        watched = state.chain is not None or state.matcher is not None or sampling.logprobs is not None
        if state.processors is not None:
            self._processed.add(state.slot)
        if penalised or watched or state.processors is not None:
            self._bound.add(state.slot)
        # With a grammar, its mask delays the stop: only the grammar knows whether another token is allowed.
        delays_stop = bool(sampling.min_tokens and state.stop_ids and state.matcher is None)
        if not (penalised or sampling.logit_bias or sampling.allowed_token_ids is not None or delays_stop):
            self._filters.pop(state.slot, None)
            return
        self._filters[state.slot] = _RowFilter(
            bias=self._bias(sampling),
            banned=self._banned(sampling),
            stop_ids=self._ids(sorted(state.stop_ids)) if delays_stop else None,
            prompt_mask=self._mask(state.token_ids[: state.num_prompt_tokens]) if penalised else None,
            counts=self._counts(state.token_ids[state.num_prompt_tokens :]) if penalised else None,
            num_counted=state.num_tokens,
        )

    def release(self, slot: int) -> None:
        """Drop the filters of this slot."""
        self._filters.pop(slot, None)
        self._chains.discard(slot)
        self._processed.discard(slot)
        self._bound.discard(slot)

    def draw(
        self,
        logits: Tensor,
        states: list[RequestState],
        slots: NDArray[np.int64],
        arrays: SamplingRows,
        masks: StepMasks | None = None,
        proposed: Sequence[Sequence[int]] | None = None,
    ) -> tuple[NDArray[np.int64], list[TokenLogprob | None]]:
        """Draw one token per row.

        Args:
            logits: fp32 [num_rows, vocab]; overwritten.
            states: the requests of the rows.
            slots: int64 [num_rows], their slots.
            arrays: the sampling numbers by slot.
            masks: the grammar masks of the rows that have one.
            proposed: for each row the tokens that are proposed to come before the one to draw; None for none.

        Returns:
            The token ids, int64 [num_rows], -1 where logits are NaN; and a logprob entry for each row that asked for
            one.
        """
        wanting = [row for row, state in enumerate(states) if state.sampling.logprobs is not None]
        raw = log_softmax(logits[wanting]) if wanting else None
        drawn = self.pick(logits, states, slots, arrays, masks, proposed)
        token_ids: NDArray[np.int64] = drawn.cpu().numpy()
        if logits.device.type == "cpu":
            token_ids = _possible(token_ids, logits.numpy())
        logprobs: list[TokenLogprob | None] = [None] * len(states)
        if raw is not None:
            chosen = drawn[torch.tensor(wanting, device=drawn.device)].clamp_(0, logits.shape[1] - 1)
            tops = [states[row].sampling.logprobs or 0 for row in wanting]
            further = [states[row].sampling.logprob_token_ids for row in wanting]
            for row, entry in zip(wanting, logprob_rows(raw, chosen, tops, further=further), strict=True):
                logprobs[row] = entry
        return token_ids, logprobs

    def pick(
        self,
        logits: Tensor,
        states: list[RequestState],
        slots: NDArray[np.int64],
        arrays: SamplingRows,
        masks: StepMasks | None = None,
        ahead: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Draw one token per row without waiting for the device, if `is_free`; see `draw`.

        Args:
            logits: fp32 [num_rows, vocab]; overwritten.
            states: the requests of the rows.
            slots: int64 [num_rows], their slots.
            arrays: the sampling numbers by slot.
            masks: the grammar masks of the rows that have one.
            ahead: for each row the tokens between the request's last one and the one to draw.

        Returns:
            The token ids, int64 [num_rows], on the device.
        """
        between: Sequence[Sequence[int]] = [()] * len(states) if ahead is None else ahead
        if self._filters:
            self._filter(logits, states, between)
        if self._processed:
            for row, state in enumerate(states):
                state.process(logits[row])
        if masks is not None:
            self._forbid(logits, masks)
        temperature = arrays.temperature[slots]
        if not temperature.any():
            drawn = _first_largest(logits)
        else:
            positions = np.fromiter((state.num_tokens for state in states), np.int64, len(states))
            positions += np.fromiter(map(len, between), np.int64, len(states))
            drawn = self._sample(
                logits,
                self._tensor(temperature),
                self._tensor(arrays.top_k[slots]),
                self._tensor(arrays.top_p[slots]),
                self._tensor(arrays.min_p[slots]),
                self._tensor(arrays.seed[slots]),
                self._tensor(positions),
            )
        if self._chains:
            self._draw_chains(drawn, logits, states)
        return drawn

    def _draw_chains(self, drawn: Tensor, logits: Tensor, states: list[RequestState]) -> None:
        """Draw the rows that have a sampler chain, into `drawn`."""
        found = [(row, state, state.chain) for row, state in enumerate(states) if state.chain is not None]
        if not found:
            return
        filtered = torch.stack([chain.filter(logits[row], state.num_tokens) for row, state, chain in found])
        count = len(found)
        tokens = self._sample(
            filtered,
            self._floats([1.0] * count),
            torch.zeros(count, dtype=torch.int32, device=self._device),
            self._floats([1.0] * count),
            self._floats([0.0] * count),
            self._ids([state.seed for _, state, _ in found]),
            self._ids([state.num_tokens for _, state, _ in found]),
        )
        drawn[self._ids([row for row, _, _ in found])] = tokens
        for index, (_, _, chain) in enumerate(found):
            if chain.steers and int(tokens[index]) >= 0:
                chain.observe(filtered[index], int(tokens[index]))

    def _filter(self, logits: Tensor, states: list[RequestState], ahead: Sequence[Sequence[int]]) -> None:
        penalised: list[int] = []
        for row, state in enumerate(states):
            row_filter = self._filters.get(state.slot)
            if row_filter is None:
                continue
            if row_filter.bias is not None:
                ids, values = row_filter.bias
                logits[row].index_add_(0, ids, values)
            if row_filter.banned is not None:
                logits[row].masked_fill_(row_filter.banned, _NEVER)
            if row_filter.stop_ids is not None and state.num_tokens + len(ahead[row]) < state.min_len:
                logits[row, row_filter.stop_ids] = _NEVER
            if row_filter.counts is not None:
                self._count(row_filter.counts, state.token_ids[row_filter.num_counted :])
                row_filter.num_counted = state.num_tokens
                penalised.append(row)
        if penalised:
            filters = [self._filters[states[row].slot] for row in penalised]
            params = [states[row].sampling for row in penalised]
            part = logits[penalised]
            counts = torch.stack([f.counts for f in filters if f.counts is not None])
            for of_row, row in zip(counts, penalised, strict=True):
                self._count(of_row, ahead[row])
            apply_penalties(
                part,
                torch.stack([f.prompt_mask for f in filters if f.prompt_mask is not None]),
                counts,
                self._floats([p.repetition_penalty for p in params]),
                self._floats([p.frequency_penalty for p in params]),
                self._floats([p.presence_penalty for p in params]),
            )
            logits[penalised] = part

    def _forbid(self, logits: Tensor, masks: StepMasks) -> None:
        bitmask = self._tensor(masks.bitmask)
        if len(masks.rows) == logits.shape[0]:
            apply_bitmask(logits, bitmask)
            return
        part = logits[masks.rows]
        apply_bitmask(part, bitmask)
        logits[masks.rows] = part

    def _bias(self, sampling: SamplingParams) -> tuple[Tensor, Tensor] | None:
        if not sampling.logit_bias:
            return None
        return self._ids(list(sampling.logit_bias)), self._floats(list(sampling.logit_bias.values()))

    def _banned(self, sampling: SamplingParams) -> Tensor | None:
        if sampling.allowed_token_ids is None:
            return None
        banned = torch.ones(self._vocab_size, dtype=torch.bool, device=self._device)
        banned[self._ids(sorted(sampling.allowed_token_ids))] = False
        return banned

    def _mask(self, token_ids: list[int]) -> Tensor:
        mask = torch.zeros(self._vocab_size, dtype=torch.bool, device=self._device)
        mask[self._ids(token_ids)] = True
        return mask

    def _counts(self, token_ids: list[int]) -> Tensor:
        return torch.bincount(self._ids(token_ids), minlength=self._vocab_size).to(torch.int32)

    def _count(self, counts: Tensor, token_ids: Sequence[int]) -> None:
        """Count further tokens."""
        if token_ids:
            counts.index_add_(0, self._ids(list(token_ids)), counts.new_ones(len(token_ids)))

    def _ids(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _floats(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        return upload(values, self._device)


def _penalised(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )


def _possible(token_ids: NDArray[np.int64], logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the drawn tokens, -1 for those with a logit that is NaN; such a row may have any number drawn."""
    last = logits.shape[1] - 1
    drawn = logits[np.arange(len(token_ids)), token_ids.clip(0, last)]
    return np.where(np.isnan(drawn), -1, token_ids) if np.isnan(drawn).any() else token_ids


def _first_largest(logits: Tensor) -> Tensor:
    """Return the first of the largest logits of each row; on a GPU -1 for one with NaN.

    On a CPU NumPy finds it: for 32 rows of 1,024 in 5 us, and torch in 90.
    """
    if logits.device.type != "cpu":
        largest, found = torch.max(logits, dim=-1)
        return found.masked_fill_(largest.isnan(), -1)
    return torch.from_numpy(np.argmax(logits.numpy(), axis=-1))
