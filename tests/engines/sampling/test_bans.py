"""Laws of bans.

- An output under bans never contains a banned text, whatever is drawn from the masks.
- A token is forbidden only if it would complete a ban, or if something else forbids it.
- A banned sequence is never complete, and its other tokens stay allowed.
- Rolling back gives the masks of the shorter output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.constraints.bans import BanMatcher, TokenTexts
from plumbline.engines.constraints.grammar import GrammarError, GrammarVocabulary, num_words
from plumbline.port.engine import SamplingParams

TOKENS = [b"a", b"b", b"ab", b"BA", b"aab", b"", b"<s>", b"\xc3", b"\xa9", b"\xff", b"a" * 40, b"b\xff"]
SIZE = len(TOKENS)
TEXTS = TokenTexts(GrammarVocabulary(TOKENS, frozenset({6}), frozenset({6}), lambda _: []))
draws = st.lists(st.integers(0, 10**6), max_size=30)
strings = st.lists(st.text("abé", min_size=1, max_size=5), min_size=1, max_size=3)


def allowed(matcher: BanMatcher) -> list[int]:
    row = np.zeros(num_words(SIZE), dtype=np.int32)
    matcher.mask_into(row)
    words = row.view(np.uint32)
    return [token for token in range(SIZE) if words[token // 32] >> (token % 32) & 1]


def text(token_ids: Sequence[int]) -> bytes:
    return b"".join(b"" if token == 6 else TOKENS[token] for token in token_ids).lower()


def completes(taken: list[int], token: int, banned: list[str]) -> bool:
    return any(entry.encode() in text([*taken, token]) for entry in banned)


@given(strings, draws)
def test_exactly_the_tokens_that_complete_a_text_are_forbidden(banned: list[str], choices: list[int]) -> None:
    matcher = BanMatcher(SamplingParams(banned_strings=tuple(banned)), SIZE, TEXTS)
    taken: list[int] = []
    for choice in choices:
        found = allowed(matcher)
        assert found == [token for token in range(SIZE) if not completes(taken, token, banned)]
        taken.append(found[choice % len(found)])
        assert matcher.accept(taken[-1])
    assert not any(entry.encode() in text(taken) for entry in banned)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=3), draws)
def test_exactly_the_last_token_of_a_sequence_is_forbidden(
    sequences: list[tuple[int, ...]], choices: list[int]
) -> None:
    matcher = BanMatcher(SamplingParams(bad_words=tuple(sequences)), SIZE)
    taken: list[int] = []
    for choice in choices:
        found = allowed(matcher)
        for token in range(SIZE):
            ends = any(tuple([*taken, token][-len(s) :]) == s for s in sequences)
            assert (token in found) != ends
        taken.append(found[choice % len(found)])
        matcher.accept(taken[-1])


@given(strings, draws, st.integers(0, 10))
def test_rolling_back_gives_the_masks_of_the_shorter_output(
    banned: list[str], choices: list[int], count: int
) -> None:
    params = SamplingParams(banned_strings=tuple(banned), bad_words=((0, 1),))
    matcher, other = (BanMatcher(params, SIZE, TEXTS) for _ in range(2))
    taken: list[int] = []
    for choice in choices:
        found = allowed(matcher)
        taken.append(found[choice % len(found)])
        matcher.accept(taken[-1])
    count = min(count, len(taken))
    matcher.rollback(count)
    for token in taken[: len(taken) - count]:
        other.accept(token)
    assert allowed(matcher) == allowed(other)


def test_bans_that_leave_no_token_are_an_error() -> None:
    params = SamplingParams(bad_words=((0,),), allowed_token_ids=frozenset({0}))
    with pytest.raises(GrammarError, match="leave no token"):
        allowed(BanMatcher(params, SIZE))


def test_the_inner_matcher_is_followed() -> None:
    inner = BanMatcher(SamplingParams(allowed_token_ids=frozenset({0, 1, 2})), SIZE)
    matcher = BanMatcher(SamplingParams(banned_strings=("B",)), SIZE, TEXTS, inner)
    assert allowed(matcher) == [0]
