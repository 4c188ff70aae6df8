"""From logits to tokens: penalties, grammar masks and the draw.

The draw is Gumbel-max: the largest of logit / temperature + noise, where the noise of a token is a hash of (seed,
position, token id). So a row's token depends on nothing but its own logits, seed and position: not on the batch, not
on a generator's state. The filters are thresholds on the logits, found without sorting on the GPU; tokens that tie at
a threshold are kept, so that the result does not depend on an order among equals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plumbline_kernels._backend import check, use_triton

__all__ = ["apply_bitmask", "apply_penalties", "gumbel_noise", "sample"]


def apply_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    """Penalise in place the tokens that were seen.

    Args:
        logits: fp32 [B, V].
        prompt_mask: bool [B, V], the tokens of the prompt.
        output_counts: int32 [B, V], how often each token was generated.
        repetition: fp32 [B]; divides positive and multiplies negative logits of tokens in the prompt or the output.
        frequency: fp32 [B]; times the count, subtracted.
        presence: fp32 [B]; subtracted once from what was generated.
    """
    _check_logits("apply_penalties", logits)
    check(prompt_mask.shape == logits.shape, "apply_penalties: prompt_mask must be like logits")
    check(output_counts.shape == logits.shape, "apply_penalties: output_counts must be like logits")
    if use_triton(logits):
        raise NotImplementedError
    generated = output_counts > 0
    if bool((repetition != 1).any()):
        factor = repetition.unsqueeze(1)
        penalised = torch.where(logits > 0, logits / factor, logits * factor)
        torch.where(prompt_mask | generated, penalised, logits, out=logits)
    if bool((frequency != 0).any()):
        logits.addcmul_(output_counts.float(), frequency.unsqueeze(1), value=-1)
    if bool((presence != 0).any()):
        logits.addcmul_(generated.float(), presence.unsqueeze(1), value=-1)


def apply_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    """Set to -inf, in place in fp32 `logits` [B, V], the tokens whose bit in int32 `bitmask` [B, ceil(V/32)] is clear."""
    _check_logits("apply_bitmask", logits)
    batch, vocab = logits.shape
    check(bitmask.shape == (batch, -(-vocab // 32)), "apply_bitmask: bitmask must be [B, ceil(V / 32)]")
    check(bitmask.dtype == torch.int32, "apply_bitmask: bitmask must be int32")
    if use_triton(logits):
        raise NotImplementedError
    bits = torch.arange(32, dtype=torch.int32)
    allowed = ((bitmask.unsqueeze(2) >> bits) & 1).view(batch, -1)[:, :vocab]
    logits.masked_fill_(allowed == 0, float("-inf"))


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

    The order is temperature, top_k, top_p (of what top_k left), min_p. Rows at temperature 0 take the largest logit,
    the lowest id among equals. Only rows with a filter pay for one.

    Args:
        logits: After penalties and masks.
        temperature: fp32 [B].
        top_k: int32 [B]; 0 keeps all tokens.
        top_p: fp32 [B]; keeps the most likely tokens until their mass reaches it.
        min_p: fp32 [B]; keeps tokens at least this fraction as likely as the most likely one.
        seeds: int64 [B].
        positions: int64 [B], the position of the token to draw.
    """
    _check_logits("sample", logits)
    for name, tensor in (
        ("temperature", temperature),
        ("top_k", top_k),
        ("top_p", top_p),
        ("min_p", min_p),
        ("seeds", seeds),
        ("positions", positions),
    ):
        check(tensor.shape == logits.shape[:1], f"sample: {name} must be [B]")
    if use_triton(logits):
        raise NotImplementedError
    greedy = temperature <= 0
    if bool(greedy.all()):
        return logits.argmax(-1)
    vocab = logits.shape[1]
    scaled = logits / torch.where(greedy, 1.0, temperature).unsqueeze(1)
    filtered = ~greedy & (((top_k > 0) & (top_k < vocab)) | (top_p < 1))
    if bool(filtered.any()):
        rows = torch.nonzero(filtered).squeeze(1)
        subset = scaled[rows]
        threshold = _threshold(subset, top_k[rows], top_p[rows])
        scaled[rows] = subset.masked_fill_(subset < threshold.unsqueeze(1), float("-inf"))
    if bool((min_p > 0).any()):
        floor = scaled.amax(-1, keepdim=True) + min_p.log().unsqueeze(1)
        scaled.masked_fill_(scaled < floor, float("-inf"))
    noise = gumbel_noise(seeds, positions, vocab)
    if bool(greedy.any()):
        noise.masked_fill_(greedy.unsqueeze(1), 0.0)
    return scaled.add_(noise).argmax(-1)


def _threshold(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The least scaled logit that top_k and top_p keep in each row of `scaled` [R, V].

    Only the head of the distribution is sorted, a longer one when its mass does not reach top_p: a full sort of a
    large vocabulary costs more than the rest of the step.
    """
    vocab = scaled.shape[1]
    keep = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab).long()
    restricted = keep < vocab
    needs_all_mass = bool((~restricted).any())
    total = scaled.logsumexp(-1, keepdim=True) if needs_all_mass else None
    head = max(64, int(keep[restricted].max()) if bool(restricted.any()) else 0)
    while True:
        head = min(head, vocab)
        values = scaled.topk(head).values
        # Values that tie with the k-th are kept as well, so they count in the mass that top_p is a fraction of.
        kth = values.gather(1, (keep.clamp(max=head) - 1).unsqueeze(1))
        kept_by_k = (values >= kth) | ~restricted.unsqueeze(1)
        complete = bool((kth > values[:, -1:])[restricted].all()) or head == vocab
        logs = values.masked_fill(~kept_by_k, float("-inf"))
        mass = logs.logsumexp(-1, keepdim=True)
        if total is not None:
            mass = torch.where(restricted.unsqueeze(1), mass, total)
        cumulative = (logs - mass).exp().cumsum(-1)
        reached = (cumulative >= top_p.unsqueeze(1)) & (top_p < 1).unsqueeze(1)
        if complete and bool((reached[:, -1] | restricted | (top_p >= 1)).all()):
            break
        if head == vocab:
            break
        head *= 8
    last = kept_by_k.sum(-1, keepdim=True) - 1
    nucleus = torch.where(reached.any(-1, keepdim=True), reached.int().argmax(-1, keepdim=True), last)
    threshold = values.gather(1, torch.minimum(nucleus, last)).squeeze(1)
    # Unrestricted rows whose nucleus is the whole vocabulary keep all of it.
    everything = ~restricted & ~reached.any(-1)
    return threshold.masked_fill(everything, float("-inf"))


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise fp32 [B, V], a function of (seed, position, token id) alone.

    The integers are the same bit for bit on every device; the two logarithms may differ in the last place.
    """
    tokens = torch.arange(vocab_size, dtype=torch.int32, device=seeds.device)
    low, high = _row_keys(seeds, positions)
    bits = tokens.mul(_GOLDEN) ^ low.unsqueeze(1)
    bits = _mix(bits).bitwise_xor_(high.unsqueeze(1))
    bits = _mix(bits)
    # The unsigned value as fp32, centred in its cell. Small values keep their full precision, and they are the ones
    # that win, so the tail of the noise is resolved to 2**-33.
    uniform = bits.to(torch.int64).bitwise_and_(0xFFFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-32)
    exponential = uniform.clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_()
    return exponential.log_().neg_()


_GOLDEN = 0x9E3779B1 - 2**32
_MIX_1 = 0x85EBCA6B - 2**32
_MIX_2 = 0xC2B2AE35 - 2**32


def _mix(x: Tensor) -> Tensor:
    """The 32-bit finaliser of MurmurHash3, in wrapping int32 arithmetic."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x.mul_(_MIX_1)
    x ^= (x >> 13) & 0x7FFFF
    x = x.mul_(_MIX_2)
    x ^= (x >> 16) & 0xFFFF
    return x


def _row_keys(seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent 32-bit keys for each (seed, position)."""
    seed_low, seed_high = _low_word(seeds), _low_word(seeds >> 32)
    position = _low_word(positions)
    low = _mix(_mix(_mix(seed_low) ^ seed_high) ^ position)
    high = _mix(_mix(low ^ _MIX_2) ^ seed_low)
    return low, high


def _low_word(x: Tensor) -> Tensor:
    """The low 32 bits of an int64 tensor as int32."""
    return ((x & 0xFFFFFFFF) ^ 0x80000000).sub_(0x80000000).to(torch.int32)


def _check_logits(name: str, logits: Tensor) -> None:
    check(logits.dim() == 2 and logits.dtype == torch.float32, f"{name}: logits must be fp32 [B, V]")
