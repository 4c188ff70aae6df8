"""Filter the logits of one request with the samplers of llama.cpp and TabbyAPI, in the order that the request gives.

Only requests with a `SamplerChain` come here; all others take the kernels' `sample`. The result is a row of logits with
-inf for each token that was dropped, so the draw itself is the same for both: a function of (seed, position, logits).
The state of a chain (penalty counts, DRY's matches, Mirostat's mu) belongs to the request and not to its slot, so a
preemption does not change it.

Definitions:
    typ_p: locally typical sampling, Meister et al. 2022 (arXiv:2202.00666).
    tfs: tail-free sampling, Phenix 2019, as in llama.cpp until 2024.
    top_a: KoboldAI and exllamav2: drops p < a * max(p)**2.
    top_n_sigma: Tang et al. 2024 (arXiv:2411.07641).
    xtc: "exclude top choices", p-e-w (oobabooga/text-generation-webui#6335), as in llama.cpp.
    temperature with dynatemp: kalomaze's entropy-based temperature, as in llama.cpp.
    mirostat: Basu et al. 2021 (arXiv:2007.14966); version 2 and the constants as in llama.cpp.

Tokens that tie at a threshold are all kept, as in the kernels, so their order does not matter. Each sampler keeps at
least one token.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plumbline.engines.filters.dry import DryHistory
from plumbline.port.engine import Mirostat, SamplerChain, SamplingParams
from plumbline_kernels.sampling import random_bits

__all__ = ["ChainSampler"]

_XTC_STREAM = 0x51AFD7ED558CCD6D
"""Separates the seed of XTC's chance from the seed of the draw."""
_MIROSTAT_TOKENS = 100
"""The most likely tokens from which Mirostat 1 estimates the exponent of Zipf's law."""


class ChainSampler:
    """The samplers of one request and their state.

    Args:
        sampling: the request's parameters; `chain` is not None.
        token_ids: the request's own list of prompt and output, which grows.
        num_prompt_tokens: the length of the prompt.
        seed: of the request.
    """

    def __init__(
        self, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int, seed: int
    ) -> None:
        assert sampling.chain is not None
        self._sampling = sampling
        self._chain: SamplerChain = sampling.chain
        self._token_ids = token_ids
        self._num_prompt_tokens = num_prompt_tokens
        self._seed = seed
        dry = self._chain.dry
        self._dry = None if dry is None or not dry.multiplier else DryHistory(dry, token_ids)
        mirostat = self._chain.mirostat
        self._mu = 0.0 if mirostat is None else 2 * mirostat.tau
        self._seen: Tensor | None = None
        """int32 [vocab], how often each token is in the window of the repetition penalty."""
        self._counts: Tensor | None = None
        """int32 [vocab], how often each token was generated."""

    @property
    def steers(self) -> bool:
        """Whether `observe` must be called after each draw."""
        return self._chain.mirostat is not None

    def filter(self, logits: Tensor, position: int) -> Tensor:
        """Return the logits to draw from at temperature 1, fp32 [vocab]; -inf where a sampler has dropped the token.

        Args:
            logits: fp32 [vocab], after bias, bans and grammar; not changed.
            position: of the token to draw.
        """
        kept = _Candidates(logits)
        if not len(kept):
            return logits
        for name in self._chain.order:
            self._run(name, kept, position)
        if self._chain.mirostat is not None:
            self._truncate(kept, self._chain.mirostat, logits.shape[0])
        return kept.row()

    def observe(self, filtered: Tensor, token_id: int) -> None:
        """Update Mirostat's mu by the surprise of the token drawn from `filtered`."""
        mirostat = self._chain.mirostat
        if mirostat is not None:
            values = filtered.double()
            surprise = float(torch.logsumexp(values, 0) - values[token_id]) / math.log(2)
            self._mu -= mirostat.eta * (surprise - mirostat.tau)

    @torch.inference_mode()  # as the counts were made
    def accept(self, token_id: int) -> None:
        """Take the token that the request has just appended to its list."""
        if self._dry is not None:
            self._dry.accept(token_id)
        if self._counts is not None:
            self._counts[token_id] += 1
        if self._seen is not None and self._chain.repeat_last_n:
            self._seen[token_id] += 1
            if 0 < self._chain.repeat_last_n < len(self._token_ids):
                self._seen[self._token_ids[-self._chain.repeat_last_n - 1]] -= 1

    def _run(self, name: str, kept: _Candidates, position: int) -> None:
        sampling, chain = self._sampling, self._chain
        match name:
            case "penalties":
                self._penalise(kept)
            case "dry" if self._dry is not None:
                kept.subtract(*self._dry.penalties())
            case "temperature":
                kept.temper(sampling.temperature, chain.dynatemp_range, chain.dynatemp_exponent)
            case "xtc" if chain.xtc_probability > 0 and self._chance(position) < chain.xtc_probability:
                kept.exclude_top(chain.xtc_threshold)
            case _ if name in _CUTS:
                value = getattr(sampling if hasattr(sampling, _CUTS[name][0]) else chain, _CUTS[name][0])
                if value != _CUTS[name][1]:
                    _CUTS[name][2](kept, value)

    def _penalise(self, kept: _Candidates) -> None:
        sampling, chain = self._sampling, self._chain
        if sampling.repetition_penalty != 1.0 and chain.repeat_last_n:
            if self._seen is None:
                recent = (
                    self._token_ids if chain.repeat_last_n < 0 else self._token_ids[-chain.repeat_last_n :]
                )
                self._seen = kept.counts(recent)
            kept.divide(self._seen > 0, sampling.repetition_penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            if self._counts is None:
                self._counts = kept.counts(self._token_ids[self._num_prompt_tokens :])
            frequency = self._counts * sampling.frequency_penalty
            kept.subtract_row(frequency + (self._counts > 0) * sampling.presence_penalty)

    def _chance(self, position: int) -> float:
        """Return a number in (0, 1) that depends on the seed and the position only."""
        seeds = torch.tensor([(self._seed ^ _XTC_STREAM) & 0x7FFFFFFFFFFFFFFF])
        return (int(random_bits(seeds, torch.tensor([position]), 1)[0, 0]) + 0.5) / 2**31

    def _truncate(self, kept: _Candidates, mirostat: Mirostat, vocab_size: int) -> None:
        """Drop what Mirostat's mu excludes."""
        probabilities = kept.probabilities()
        if mirostat.version == 2:
            size = int((-torch.log2(probabilities) <= self._mu).sum())
        else:
            size = _zipf_rank(probabilities[:_MIROSTAT_TOKENS].tolist(), self._mu, vocab_size)
        kept.cut(max(1, min(size, len(kept))))


class _Candidates:
    """The tokens that are left, by id, with their logits in fp64.

    Every cut is a threshold, because ties stay together. So only the logits are sorted and never the ids with them.
    """

    def __init__(self, logits: Tensor) -> None:
        self._vocab_size = logits.shape[0]
        self._ids = torch.nonzero(logits > -math.inf).squeeze(1)
        self._logits = logits[self._ids].double()
        self._ordered: Tensor | None = None

    def __len__(self) -> int:
        return self._ids.shape[0]

    def row(self) -> Tensor:
        """The logits by token, fp32 [vocab]."""
        row = torch.full((self._vocab_size,), -math.inf, dtype=torch.float32, device=self._ids.device)
        row[self._ids] = self._logits.float()
        return row

    def counts(self, token_ids: Sequence[int]) -> Tensor:
        """How often each token is in `token_ids`, int32 [vocab]."""
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self._ids.device)
        return torch.bincount(ids, minlength=self._vocab_size).to(torch.int32)

    def divide(self, mask: Tensor, factor: float) -> None:
        """Divide positive and multiply negative logits of the tokens of `mask`, bool [vocab] (CTRL, 2019)."""
        penalised = torch.where(self._logits > 0, self._logits / factor, self._logits * factor)
        self._change(torch.where(mask[self._ids], penalised, self._logits))

    def subtract_row(self, values: Tensor) -> None:
        """Subtract a value per token, [vocab]."""
        self._change(self._logits - values[self._ids].double())

    def subtract(self, ids: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Subtract values from the logits of a few tokens."""
        if len(ids):
            row = torch.zeros(self._vocab_size, dtype=torch.float64, device=self._ids.device)
            row[torch.from_numpy(ids).to(row.device)] = torch.from_numpy(values).to(row.device)
            self.subtract_row(row)

    def ordered(self) -> Tensor:
        """The logits, largest first, fp64 [n]."""
        if self._ordered is None:
            self._ordered = _sorted(self._logits).flip(0)
        return self._ordered

    def probabilities(self) -> Tensor:
        """The probabilities, largest first, fp64 [n]."""
        return torch.softmax(self.ordered(), 0)

    def temper(self, temperature: float, spread: float, exponent: float) -> None:
        """Divide by the temperature, which moves by `spread` with the entropy; 0 keeps the most likely token."""
        if spread > 0 and len(self) > 1:
            entropy = float(torch.special.entr(torch.softmax(self._logits, 0)).sum()) / math.log(len(self))
            low = max(0.0, temperature - spread)
            temperature = low + (temperature + spread - low) * min(1.0, max(0.0, entropy)) ** exponent
        temperature = float(np.float32(temperature))
        if temperature <= 0:
            # The lowest id among equals, as everywhere.
            best = int(torch.argmax(self._logits))
            self._ids, self._ordered = self._ids[best : best + 1], None
            self._logits = self._logits[best : best + 1]
        elif temperature != 1:
            self._change(self._logits / temperature)

    def exclude_top(self, threshold: float) -> None:
        """Drop all but the least likely of the tokens that reach the threshold; above 0.5 only one can."""
        count = int((self.probabilities() >= threshold).sum())
        if threshold <= 0.5 and count > 1:
            self._keep(self._logits <= self.ordered()[count - 1])

    def top_k(self, count: float) -> None:
        """Keep this many tokens."""
        self.cut(min(int(count), len(self)))

    def top_p(self, mass: float) -> None:
        """Keep the most likely tokens until their mass reaches this."""
        reached = self.probabilities().cumsum(0) >= mass
        self.cut(int(torch.argmax(reached.int())) + 1 if bool(reached.any()) else len(self))

    def min_p(self, fraction: float) -> None:
        """Keep the tokens at least this fraction as likely as the most likely one."""
        self._keep(self._logits >= self._logits.max() + math.log(fraction))

    def top_a(self, factor: float) -> None:
        """Keep the tokens at least as likely as `factor` times the square of the most likely one."""
        normal = torch.logsumexp(self._logits, 0)
        self._keep(self._logits - normal >= math.log(factor) + 2 * (self._logits.max() - normal))

    def top_n_sigma(self, count: float) -> None:
        """Keep the tokens within this many standard deviations of the largest logit."""
        self._keep(self._logits >= self._logits.max() - count * self._logits.std(correction=0))

    def typical(self, mass: float) -> None:
        """Keep the tokens with a surprise closest to the entropy until their mass exceeds `mass`."""
        probabilities = torch.softmax(self._logits, 0)
        surprise = torch.logsumexp(self._logits, 0) - self._logits
        distance = (surprise - torch.special.entr(probabilities).sum()).abs()
        ordered = _sorted(distance)
        low, high = 0, len(self) - 1
        while low < high:
            middle = (low + high) // 2
            if float(probabilities[distance <= ordered[middle]].sum()) > mass:
                high = middle
            else:
                low = middle + 1
        self._keep(distance <= ordered[low])

    def tail_free(self, mass: float) -> None:
        """Cut where the normalised sum of the absolute second differences of the probabilities exceeds `mass`."""
        if len(self) <= 2:
            return
        curvature = self.probabilities().diff().diff().abs()
        total = float(curvature.sum())
        weights = curvature / total if total > 1e-6 else torch.full_like(curvature, 1 / len(curvature))
        exceeded = weights.cumsum(0) > mass
        exceeded[0] = False  # at least one token stays
        if bool(exceeded.any()):
            self.cut(int(torch.argmax(exceeded.int())))

    def cut(self, size: int) -> None:
        """Keep the `size` most likely tokens, and those as likely as the last of them."""
        self._keep(self._logits >= self.ordered()[size - 1])

    def _keep(self, mask: Tensor) -> None:
        self._ids, self._logits, self._ordered = self._ids[mask], self._logits[mask], None

    def _change(self, logits: Tensor) -> None:
        self._logits, self._ordered = logits, None


_CUTS: Mapping[str, tuple[str, float, Callable[[_Candidates, float], None]]] = {
    "top_k": ("top_k", 0, _Candidates.top_k),
    "top_p": ("top_p", 1.0, _Candidates.top_p),
    "min_p": ("min_p", 0.0, _Candidates.min_p),
    "typ_p": ("typical_p", 1.0, _Candidates.typical),
    "top_a": ("top_a", 0.0, _Candidates.top_a),
    "tfs": ("tfs", 1.0, _Candidates.tail_free),
    "top_n_sigma": ("top_n_sigma", 0.0, _Candidates.top_n_sigma),
}
"""By the name of a sampler: its parameter, the value that turns it off, and what it does."""


def _sorted(values: Tensor) -> Tensor:
    """Sort fp64 [n], smallest first. On a CPU NumPy's sort is vectorised, which makes it ten times faster."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy()))
    return torch.sort(values).values


def _zipf_rank(probabilities: Sequence[float], mu: float, vocab_size: int) -> int:
    """Return how many tokens Mirostat 1 keeps, from the slope of the most likely ones.

    Args:
        probabilities: of the most likely tokens, largest first.
        mu: the largest surprise to allow, in bits.
        vocab_size: the number of tokens that Zipf's law is spread over.
    """
    ranks = [math.log((i + 2) / (i + 1)) for i in range(len(probabilities) - 1)]
    steps = [math.log(a / b) if b > 0 else 0.0 for a, b in itertools.pairwise(probabilities)]
    slope = sum(t * b for t, b in zip(ranks, steps, strict=True)) / (sum(t * t for t in ranks) or 1.0)
    if slope <= 0:
        return vocab_size  # All are equally likely.
    excess = slope - 1
    tail = -math.expm1(-excess * math.log(vocab_size))
    # At a slope of 1 the quotient has the limit 1 / log(vocab_size).
    ratio = excess / tail if abs(excess) > 1e-9 else 1 / math.log(vocab_size)
    exponent = (mu * math.log(2) + math.log(ratio)) / slope
    return vocab_size if exponent > math.log(vocab_size) else int(math.exp(exponent))
