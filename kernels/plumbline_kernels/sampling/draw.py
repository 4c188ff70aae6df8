"""Draw one token per row from logits, with temperature, top-k, top-p and min-p.

The draw is Gumbel-max: the token with the largest logit / temperature + noise, where the noise of a token is a hash of
(seed, position, token id). So the token of a row depends only on its parameters, logits, seed and position, not on the
batch or the state of a generator. The filters are thresholds on the logits: tokens that tie at a threshold are all
kept, so their order does not matter. The Triton version finds the thresholds by bisection, without a sort.
"""

from functools import lru_cache

import torch
from torch import Tensor

from plumbline_kernels._backend import check, use_triton
from plumbline_kernels.logits import check_logits
from plumbline_kernels.sampling import _gumbel
from plumbline_kernels.sampling._gumbel import GOLDEN, MIX_1, MIX_2, SECOND

__all__ = ["gumbel_noise", "random_bits", "sample", "sample_torch"]

_INF = float("inf")
_WORD = 0xFFFFFFFF


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one token per row of fp32 `logits` [B, V]; returns int64 [B].

    The order is temperature, top_k, top_p (of the mass that top_k left), min_p. Rows at temperature 0 take the
    largest logit, the lowest id among equals. Rows without a filter skip the search for a threshold.

    Args:
        logits: After penalties and masks; not changed.
        temperature: fp32 [B].
        top_k: int32 [B]; 0 keeps all tokens.
        top_p: fp32 [B]; keeps the most likely tokens until their mass reaches it.
        min_p: fp32 [B]; keeps tokens at least this fraction as likely as the most likely one.
        seeds: int64 [B].
        positions: int64 [B], the position of the token to draw.
    """
    check_logits("sample", logits)
    rows = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for name, tensor in (rows | {"seeds": seeds, "positions": positions}).items():
        check(tensor.shape == logits.shape[:1] and tensor.is_contiguous(), f"sample: {name} must be [B]")
    check(seeds.dtype == positions.dtype == torch.int64, "sample: seeds and positions must be int64")
    if use_triton(logits):
        return _gumbel.launch(logits, temperature, top_k, top_p, min_p, seeds, positions)
    return sample_torch(logits, temperature, top_k, top_p, min_p, seeds, positions)


def sample_torch(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Compute `sample` in torch."""
    random = temperature > 0
    if not bool(random.any()):
        return logits.argmax(-1)
    vocab = logits.shape[1]
    divisor = torch.where(random, temperature, 1.0)
    scores = logits / divisor.unsqueeze(1)
    filtered = random & (((top_k > 0) & (top_k < vocab)) | (top_p < 1))
    if bool(filtered.any()):
        rows = torch.nonzero(filtered).squeeze(1)
        threshold = _threshold(logits[rows], divisor[rows], top_k[rows], top_p[rows])
        scores[rows] = scores[rows].masked_fill_(logits[rows] < threshold.unsqueeze(1), -_INF)
    relative = random & (min_p > 0)
    if bool(relative.any()):
        floor = torch.where(relative, logits.amax(-1) + divisor * min_p.log(), -_INF)
        scores.masked_fill_(logits < floor.unsqueeze(1), -_INF)
    noise = _log_exponential(seeds, positions, vocab)
    if not bool(random.all()):
        noise.masked_fill_(~random.unsqueeze(1), 0.0)
    return scores.sub_(noise).argmax(-1)


def _threshold(logits: Tensor, divisor: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return the least logit that top_k and then top_p keep in each row of `logits` [R, V].

    For top_p, sort the 64 likeliest tokens first, and eight times as many as long as their mass does not reach top_p:
    sorting a large vocabulary costs more than the rest of the step.
    """
    vocab = logits.shape[1]
    keep = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab).long()
    largest = logits.amax(-1, keepdim=True)
    mass = ((logits - largest) / divisor.unsqueeze(1)).exp_()
    kth = torch.full_like(divisor, -_INF)
    limited = torch.nonzero(keep < vocab).squeeze(1)
    if limited.numel():
        # One topk for all rows: the k-th value of a row is at index k - 1 of its sorted head.
        head = logits[limited].topk(int(keep[limited].max())).values
        kth[limited] = head.gather(1, keep[limited].unsqueeze(1) - 1).squeeze(1)
        mass.masked_fill_(logits < kth.unsqueeze(1), 0.0)
    wanted = top_p * mass.sum(-1)
    nucleus = torch.full_like(divisor, -_INF)
    rows = torch.nonzero(top_p < 1).squeeze(1)
    length = 64
    while rows.numel():
        length = min(length, vocab)
        values, indices = logits[rows].topk(length)
        cumulative = mass[rows].gather(1, indices).cumsum_(-1)
        reached = cumulative >= wanted[rows].unsqueeze(1)
        first = reached.int().argmax(-1, keepdim=True)
        done = reached[:, -1]
        nucleus[rows] = torch.where(done, values.gather(1, first).squeeze(1), -_INF)
        if length == vocab:
            break
        rows = rows[~done]
        length *= 8
    return torch.maximum(kth, nucleus)


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Return standard Gumbel noise fp32 [B, V], a function of (seed, position, token id) alone.

    The integers are the same bit for bit on every device; the logarithms may differ in the last place.
    """
    return _log_exponential(seeds, positions, vocab_size).neg_()


def _log_exponential(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Return the logarithm of exponential noise, the negative of Gumbel noise: log(-log(1 - u)), u uniform.

    u is centred in its cell of width 2**-31. A small u gives large Gumbel noise, which wins the draw, and fp32 keeps
    small numbers exactly, so the tail of the noise is resolved to 2**-32.
    """
    noise = random_bits(seeds, positions, vocab_size).to(torch.float32)
    noise = noise.mul_(-(2.0**-31)).sub_(2.0**-32).clamp_(min=2.0**-24 - 1)
    return noise.log1p_().neg_().log_()


def random_bits(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Hash (seed, position, token id) to 31 bits, as int32 [B, V], in wrapping arithmetic.

    The token id is hashed with two keys of 32 bits, one before and one within the hash. Python computes the
    keys: for the few rows of a batch that is cheaper than fifty operations on tiny tensors.
    """
    keys = [
        _row_keys(seed, position) for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]
    first, second = torch.tensor(keys, dtype=torch.int32).view(-1, 2).unsqueeze(-1).unbind(1)
    # int32 shifts copy the sign, hence the masks.
    x = _scattered_tokens(vocab_size) ^ first
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_signed(MIX_1)).bitwise_xor_(second)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(_signed(MIX_2))
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).bitwise_and_(0x7FFFFFFF)


@lru_cache(maxsize=8)
def _scattered_tokens(vocab_size: int) -> Tensor:
    return torch.arange(vocab_size, dtype=torch.int32) * _signed(GOLDEN)


def _row_keys(seed: int, position: int) -> tuple[int, int]:
    """Return two 32-bit keys of (seed, position), as signed integers."""
    low, high = seed & _WORD, (seed >> 32) & _WORD
    first = _mix(_mix(_mix(low) ^ high) ^ (position & _WORD))
    second = _mix(_mix(first ^ SECOND) ^ low)
    return _signed(first), _signed(second)


def _mix(x: int) -> int:
    x = (x ^ (x >> 16)) * MIX_1 & _WORD
    x = (x ^ (x >> 15)) * MIX_2 & _WORD
    return x ^ (x >> 16)


def _signed(x: int) -> int:
    """Return the int32 with the bits of an unsigned 32-bit integer."""
    return x - 2**32 if x >= 2**31 else x
