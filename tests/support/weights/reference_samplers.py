"""Compute the samplers of llama.cpp and TabbyAPI one token at a time, in NumPy and plain Python.

Each cut returns a set of token ids. `slack` moves its threshold: a correct set lies between those of a small negative
and a small positive slack, whatever the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["CUTS", "dry_penalties", "mirostat_kept", "softmax", "tempered"]

Logits = dict[int, float]


def softmax(logits: Logits) -> dict[int, float]:
    largest = max(logits.values())
    total = sum(math.exp(value - largest) for value in logits.values())
    return {token: math.exp(value - largest) / total for token, value in logits.items()}


def ranked(logits: Logits) -> list[int]:
    return sorted(logits, key=lambda token: (-logits[token], token))


def with_ties(logits: Logits, kept: Sequence[int], slack: float) -> set[int]:
    """Add the tokens as likely as the least likely of `kept`."""
    least = min(logits[token] for token in kept)
    return {token for token, value in logits.items() if value >= least - max(0.0, slack)}


def typical(logits: Logits, mass: float, slack: float) -> set[int]:
    p = softmax(logits)
    entropy = -sum(value * math.log(value) for value in p.values() if value > 0)
    distance = {token: abs(-math.log(p[token]) - entropy) for token in p}
    order = sorted(p, key=lambda token: (distance[token], ranked(logits).index(token)))
    total, last = 0.0, order[-1]
    for token in order:
        total += p[token]
        if total > mass + slack:
            last = token
            break
    return {token for token in p if distance[token] <= distance[last] + slack}


def tail_free(logits: Logits, mass: float, slack: float) -> set[int]:
    order = ranked(logits)
    if len(order) <= 2:
        return set(order)
    values = np.array([softmax(logits)[token] for token in order])
    second = np.abs(np.diff(values, 2))
    second = second / second.sum() if second.sum() > 1e-6 else np.full(len(second), 1 / len(second))
    total, size = 0.0, len(order)
    for index, weight in enumerate(second):
        total += weight
        if total > mass + slack and index >= 1:
            size = index
            break
    return with_ties(logits, order[:size], slack)


def top_a(logits: Logits, factor: float, slack: float) -> set[int]:
    p = softmax(logits)
    return {token for token in p if p[token] >= factor * max(p.values()) ** 2 - slack}


def top_n_sigma(logits: Logits, count: float, slack: float) -> set[int]:
    values = np.array(list(logits.values()))
    floor = values.max() - count * values.std()
    return {token for token, value in logits.items() if value >= floor - slack}


def top_k(logits: Logits, count: float, slack: float) -> set[int]:
    return with_ties(logits, ranked(logits)[: int(count)], slack)


def top_p(logits: Logits, mass: float, slack: float) -> set[int]:
    p, total, kept = softmax(logits), 0.0, []
    for token in ranked(logits):
        kept.append(token)
        total += p[token]
        if total >= mass + slack:
            break
    return with_ties(logits, kept, slack)


def min_p(logits: Logits, fraction: float, slack: float) -> set[int]:
    p = softmax(logits)
    return {token for token in p if p[token] >= fraction * max(p.values()) - slack}


def xtc(logits: Logits, threshold: float, slack: float) -> set[int]:
    p = softmax(logits)
    above = [token for token in ranked(logits) if p[token] >= threshold + slack]
    if threshold > 0.5 or len(above) < 2:
        return set(p)
    return {token for token in p if logits[token] <= logits[above[-1]] + max(0.0, slack)}


CUTS: dict[str, Callable[[Logits, float, float], set[int]]] = {
    "typ_p": typical,
    "tfs": tail_free,
    "top_a": top_a,
    "top_n_sigma": top_n_sigma,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
    "xtc": xtc,
}
"""By the name of a sampler, the tokens that it keeps."""


def tempered(logits: Logits, temperature: float, spread: float, exponent: float) -> Logits:
    """Apply the temperature, dynamic if `spread` is positive."""
    if spread > 0 and len(logits) > 1:
        p = softmax(logits)
        entropy = -sum(value * math.log(value) for value in p.values() if value > 0)
        low = max(0.0, temperature - spread)
        share = min(1.0, entropy / math.log(len(logits)))
        temperature = low + (temperature + spread - low) * share**exponent
    if temperature <= 0:
        best = ranked(logits)[0]
        return {best: logits[best]}
    return {token: value / temperature for token, value in logits.items()}


def mirostat_kept(logits: Logits, version: int, mu: float, vocab_size: int, slack: float) -> set[int]:
    """The tokens that Mirostat draws from at this mu."""
    p, order = softmax(logits), ranked(logits)
    if version == 2:
        kept = [token for token in order if -math.log2(p[token]) <= mu + slack] or order[:1]
        return with_ties(logits, kept, slack)
    numerator = denominator = 0.0
    for i in range(min(99, len(order) - 1)):
        t = math.log((i + 2) / (i + 1))
        numerator += t * math.log(p[order[i]] / p[order[i + 1]])
        denominator += t * t
    s = numerator / denominator if denominator else 0.0
    if s <= 1e-12:
        return set(order)
    epsilon = s - 1
    if abs(epsilon) < 1e-9:
        return set(order)
    k = ((epsilon * 2**mu) / (1 - vocab_size**-epsilon)) ** (1 / s) * (1 + slack)
    return with_ties(logits, order[: max(1, int(min(k, len(order))))], slack)


def dry_penalties(
    tokens: Sequence[int],
    *,
    multiplier: float,
    base: float,
    allowed_length: int,
    window: int,
    breakers: Sequence[tuple[int, ...]] = (),
) -> dict[int, float]:
    """Compare every place of the window with its end, token by token."""
    recent = list(tokens)[-window:] if window else []
    size = len(recent)
    limit = size
    for end in range(size, 0, -1):
        if any(tuple(tokens[: len(tokens) - size + end][-len(b) :]) == b for b in breakers):
            limit = size - end
            break
    if size <= allowed_length or limit < allowed_length:
        return {}
    longest: dict[int, int] = {}
    for place in range(size - 1):
        length = 0
        while length <= place and length < limit and recent[place - length] == recent[size - 1 - length]:
            length += 1
        if length >= allowed_length:
            token = recent[place + 1]
            longest[token] = max(longest.get(token, 0), length)
    return {token: multiplier * base ** (length - allowed_length) for token, length in longest.items()}
