"""Laws of the sampler: who may be drawn, how often, and from what the draw follows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from torch import Tensor

from plumbline_kernels.sampling import apply_bitmask, apply_penalties, gumbel_noise, random_bits, sample

torch.set_num_threads(1)
SETTINGS = settings(max_examples=EXPLORED or 25, deadline=None)


def draw(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Sample every row of `logits` with the same settings; by default row i has seed 1 and position i."""
    rows = logits.shape[0]
    return sample(
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.full((rows,), 1) if seeds is None else seeds,
        torch.arange(rows) if positions is None else positions,
    )


def allowed_by_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> set[int]:
    """The tokens that may be drawn, by sorting and adding up in Python; ties at a border are all in."""
    best = max(logits)
    mass = {token: math.exp((x - best) / temperature) for token, x in enumerate(logits)}
    if 0 < top_k < len(logits):
        border = sorted(logits, reverse=True)[top_k - 1]
        mass = {token: m for token, m in mass.items() if logits[token] >= border}
    if top_p < 1:
        total, reached = sum(mass.values()), 0.0
        for token in sorted(mass, key=lambda t: -logits[t]):
            border = logits[token]
            reached += mass[token]
            if reached >= top_p * total:
                break
        mass = {token: m for token, m in mass.items() if logits[token] >= border}
    return {token for token, m in mass.items() if m >= min_p}


@SETTINGS
@given(
    scores=st.lists(st.integers(-12, 12), min_size=2, max_size=200),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 5, 70, 1000]),
    top_p=st.sampled_from([1.0, 0.999, 0.83, 0.31, 0.0101]),
    min_p=st.sampled_from([0.0, 0.0213, 0.31]),
)
def test_exactly_the_tokens_that_the_filters_keep_can_be_drawn(
    scores: Any, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """No token outside is drawn in 4,000 draws, and each one inside that is not too rare is."""
    logits = [score * 0.37 for score in scores]
    allowed = allowed_by_definition(logits, temperature, top_k, top_p, min_p)
    vocab = len(logits)
    rows = 4000
    seen = set(draw(torch.tensor(logits).expand(rows, vocab), temperature, top_k, top_p, min_p).tolist())
    assert seen <= allowed
    likely = {t for t in allowed if math.exp((logits[t] - max(logits)) / temperature) / vocab > 20 / rows}
    assert likely <= seen


@pytest.mark.long
@pytest.mark.parametrize("vocab", [100, 3000])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.9), (40, 1.0), (40, 0.8), (0, 0.9999)])
def test_draws_follow_the_filtered_distribution(vocab: int, top_k: int, top_p: float) -> None:
    """A chi-square test over 8,000 draws with fixed seeds; a fair sampler fails it once in 10,000 seeds."""
    generator = torch.Generator().manual_seed(vocab + top_k)
    logits = torch.randn(vocab, generator=generator) * 2
    rows = 8000
    tokens = torch.cat(
        [
            draw(logits.expand(2000, vocab), 0.8, top_k, top_p, positions=torch.arange(start, start + 2000))
            for start in range(0, rows, 2000)
        ]
    )
    allowed = allowed_by_definition(logits.tolist(), 0.8, top_k, top_p, 0.0)
    mask = torch.tensor([token in allowed for token in range(vocab)])
    expected = torch.softmax(torch.where(mask, logits.double() / 0.8, -torch.inf), 0) * rows
    counts = torch.bincount(tokens, minlength=vocab).double()
    assert (counts[~mask] == 0).all()
    common = expected >= 10
    observed = torch.cat((counts[common], counts[~common].sum()[None]))
    wanted = torch.cat((expected[common], expected[~common].sum()[None])).clamp(min=1e-9)
    kept = wanted > 1
    statistic = ((observed - wanted)[kept].square() / wanted[kept]).sum().item()
    freedom = int(kept.sum()) - 1
    # Wilson and Hilferty's approximation of the chi-square quantile.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


def test_a_token_depends_on_nothing_but_its_row() -> None:
    """The same row drawn alone, and in any order among others, gives the same token."""
    generator = torch.Generator().manual_seed(3)
    rows, vocab = 24, 500
    logits = torch.randn(rows, vocab, generator=generator) * 2
    settings_ = [
        (torch.rand(rows, generator=generator) * 2).where(torch.arange(rows) % 5 > 0, 0.0),
        torch.randint(0, 30, (rows,), generator=generator).int(),
        torch.rand(rows, generator=generator) * 0.5 + 0.5,
        torch.rand(rows, generator=generator) * 0.1,
        torch.randint(-(2**62), 2**62, (rows,), generator=generator),
        torch.randint(0, 10000, (rows,), generator=generator),
    ]
    together = sample(logits, *settings_)
    order = torch.randperm(rows, generator=generator)
    assert torch.equal(sample(logits[order], *(s[order] for s in settings_)), together[order])
    for row in range(rows):
        alone = sample(logits[row : row + 1], *(s[row : row + 1] for s in settings_))
        assert alone.item() == together[row].item()


def test_temperature_zero_takes_the_largest_logit_and_the_lowest_id_among_equals() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 2.0], [7.0, 7.0, 7.0, 7.0], [float("-inf"), -3.0, -3.0, -4.0]])
    assert draw(logits, temperature=0.0).tolist() == [1, 0, 1]
    # Also beside rows that do draw, and with filters that have no say.
    temperature = torch.tensor([0.0, 1.0, 0.0])
    rest = (torch.tensor([2, 2, 2]).int(), torch.tensor([0.5] * 3), torch.tensor([0.1] * 3))
    tokens = sample(logits, temperature, *rest, torch.arange(3), torch.arange(3))
    assert tokens[[0, 2]].tolist() == [1, 1]


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.zeros(3000, 50)
    logits[:, ::2] = float("-inf")
    assert (draw(logits, temperature=5.0) % 2 == 1).all()


def test_a_very_high_temperature_is_uniform_and_a_very_low_one_greedy() -> None:
    logits = torch.arange(8.0).expand(8000, 8)
    counts = torch.bincount(draw(logits, temperature=1e6), minlength=8)
    assert ((counts - 1000).abs() < 150).all()
    assert (draw(logits, temperature=1e-3) == 7).all()


def test_noise_differs_between_seeds_positions_and_tokens() -> None:
    """Neighbouring keys share no more bits than chance: about half of them differ, for each kind of neighbour."""
    seeds = torch.tensor([0, 1, 2**32, 2**33, 0, 0])
    positions = torch.tensor([0, 0, 0, 0, 1, 2])
    bits = random_bits(seeds, positions, 2000)
    for row in range(1, 6):
        changed = bits[0] ^ bits[row]
        flips = torch.stack([(changed >> i) & 1 for i in range(31)]).double().mean(1)
        assert ((flips - 0.5).abs() < 0.06).all()
    neighbours = bits[0, 1:] ^ bits[0, :-1]
    flips = torch.stack([(neighbours >> i) & 1 for i in range(31)]).double().mean(1)
    assert ((flips - 0.5).abs() < 0.06).all()


def test_the_noise_is_standard_gumbel() -> None:
    """Its mean is Euler's constant, its variance π²/6, and its distribution exp(-exp(-x))."""
    noise = gumbel_noise(torch.arange(100), torch.zeros(100, dtype=torch.int64), 5000).double().flatten()
    assert noise.mean().item() == pytest.approx(0.57722, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    ordered = noise.sort().values
    ideal = torch.exp(-torch.exp(-ordered))
    steps = torch.arange(1, len(ordered) + 1) / len(ordered)
    assert (ideal - steps).abs().max() < 0.003
    assert torch.isfinite(noise).all()


def test_the_integers_behind_the_noise_never_change() -> None:
    """Recorded once: a seed means the same tokens in every version and on every device."""
    bits = random_bits(torch.tensor([0, 42, -7]), torch.tensor([0, 9, 2**33 + 5]), 3)
    assert bits.tolist() == RECORDED


RECORDED = [
    [595329723, 1165202626, 1846514629],
    [722704582, 1034601183, 2121079430],
    [1973615729, 470359174, 300031131],
]


def test_penalties_follow_their_definitions() -> None:
    """Repetition counts prompt and output and acts by sign; the other two count generated tokens only."""
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0, 1.0]])
    prompt = torch.tensor([[True, True, False, False, False]])
    counts = torch.tensor([[0, 0, 3, 1, 0]], dtype=torch.int32)
    apply_penalties(logits, prompt, counts, torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([0.25]))
    torch.testing.assert_close(logits, torch.tensor([[1.0, -4.0, 1.0 - 1.5 - 0.25, -4.0 - 0.5 - 0.25, 1.0]]))


def test_neutral_penalties_change_no_bit() -> None:
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    ones, zeros = torch.ones(2), torch.zeros(2)
    seen = torch.ones(2, 40, dtype=torch.bool)
    apply_penalties(logits, seen, seen.int(), ones, zeros, zeros)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 95])
def test_a_bitmask_bans_exactly_the_tokens_whose_bit_is_clear(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    words = -(-vocab // 32)
    bitmask = torch.randint(-(2**31), 2**31, (3, words), generator=generator).int()
    logits = torch.zeros(3, vocab)
    apply_bitmask(logits, bitmask)
    for row in range(3):
        for token in range(vocab):
            allowed = (int(bitmask[row, token // 32]) >> (token % 32)) & 1
            assert logits[row, token].item() == (0.0 if allowed else float("-inf"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw(torch.zeros(2, 4).half()), "sample: logits"),
        (lambda: draw(torch.zeros(2, 4), positions=torch.zeros(3, dtype=torch.int64)), "positions"),
        (lambda: draw(torch.zeros(2, 4), seeds=torch.zeros(2)), "seeds"),
        (lambda: apply_bitmask(torch.zeros(2, 33), torch.zeros(2, 1, dtype=torch.int32)), "ceil"),
        (lambda: apply_bitmask(torch.zeros(2, 32), torch.zeros(2, 1, dtype=torch.int64)), "int32"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
