"""Draw the next token of one request, and read the logprobs of its prompt, from logits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from plumbline.engines.constraints.grammar import num_words
from plumbline.engines.request import RequestState
from plumbline.engines.sampling.logprobs import logprob_rows
from plumbline.engines.sampling.masks import fill_mask
from plumbline.port.engine import TokenLogprob
from plumbline_kernels.sampling import apply_bitmask, apply_penalties, sample

__all__ = ["draw", "prompt_logprobs"]


def draw(state: RequestState, raw: Tensor) -> int:
    """Draw a token from raw logits fp32 [1, V], in the order that `SamplingParams` documents."""
    sampling, device = state.sampling, raw.device
    logits = raw.clone()
    for token, bias in sampling.logit_bias.items():
        logits[0, token] += bias
    if sampling.allowed_token_ids is not None:
        banned = torch.ones_like(logits, dtype=torch.bool)
        banned[0, sorted(sampling.allowed_token_ids)] = False
        logits.masked_fill_(banned, float("-inf"))
    if state.num_tokens < state.min_len and state.stop_ids and state.matcher is None:
        logits[0, sorted(state.stop_ids)] = float("-inf")

    def row(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor([value], dtype=dtype, device=device)

    prompt_mask = torch.zeros_like(logits, dtype=torch.bool)
    prompt_mask[0, state.token_ids[: state.num_prompt_tokens]] = True
    output = torch.tensor(state.token_ids[state.num_prompt_tokens :], dtype=torch.int64, device=device)
    counts = torch.bincount(output, minlength=logits.shape[1]).int().unsqueeze(0)
    if state.chain is None:
        apply_penalties(
            logits,
            prompt_mask,
            counts,
            row(sampling.repetition_penalty),
            row(sampling.frequency_penalty),
            row(sampling.presence_penalty),
        )
    state.process(logits[0])
    if state.matcher is not None:
        bitmask = np.zeros((1, num_words(logits.shape[1])), dtype=np.int32)
        fill_mask(state, bitmask[0])
        apply_bitmask(logits, torch.from_numpy(bitmask).to(device))
    plain = state.chain is None
    if state.chain is not None:
        logits = state.chain.filter(logits[0], state.num_tokens).unsqueeze(0)
    drawn = int(
        sample(
            logits,
            row(sampling.temperature if plain else 1.0),
            row(sampling.top_k if plain else 0, torch.int32),
            row(sampling.top_p if plain else 1.0),
            row(sampling.min_p if plain else 0.0),
            row(state.seed, torch.int64),
            row(state.num_tokens, torch.int64),
        )
    )
    if state.chain is not None:
        state.chain.observe(logits[0], drawn)
    return drawn


def prompt_logprobs(state: RequestState, logits: Tensor) -> list[TokenLogprob]:
    """Return the logprobs that logits [prompt, V] give to the prompt tokens after the first."""
    following = torch.tensor(state.token_ids[1 : state.num_prompt_tokens], device=logits.device)
    if following.numel() == 0:
        return []
    tops = [state.sampling.prompt_logprobs or 0] * len(following)
    return logprob_rows(torch.log_softmax(logits[: len(following)], dim=-1), following, tops, ranks=True)
