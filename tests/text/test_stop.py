"""Stop strings, against an oracle that reads the whole text at once (CHAT-10, CS-15)."""

from __future__ import annotations

import tracemalloc

from hypothesis import example, given
from hypothesis import strategies as st
from support.strategies import cuts

from plumbline.answer.text.stop import StopChecker

# A small alphabet, so that near misses and overlaps are the rule.
words = st.text("ab<>", min_size=1, max_size=5)
stops = st.lists(words, min_size=1, max_size=4).map(tuple)
texts = st.text("ab<>", max_size=30)


def oracle(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """Walk over the text; at each character see which stop strings end there, and take the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(texts, stops, st.booleans(), st.data())
@example("aab", ("ab",), False, None)
@example("ab<", ("b<>", "<"), False, None)
def test_any_cutting_gives_what_the_whole_text_gives(
    text: str, stops: tuple[str, ...], include: bool, data: st.DataObject | None
) -> None:
    """CHAT-10: generation ends at the stop string that is completed first; of two that end together, the longer."""
    pieces = list(text) if data is None else data.draw(cuts(text))
    checker = StopChecker(stops, include=include)
    sent = "".join(checker.push(piece) for piece in pieces) + checker.flush()

    assert oracle(text, stops, include) == (sent, checker.matched)


@given(texts, stops, st.data())
def test_nothing_that_is_sent_is_part_of_a_match(
    text: str, stops: tuple[str, ...], data: st.DataObject
) -> None:
    """CS-15: whatever follows, what has been sent stays a prefix of the answer."""
    pieces = data.draw(cuts(text))
    checker = StopChecker(stops)
    sent, seen = "", ""
    for piece in pieces:
        sent += checker.push(piece)
        seen += piece
        for stop in stops:  # The worst that could follow is the rest of a stop string.
            for size in range(len(stop)):
                assert oracle(seen + stop[size:], stops, False)[0].startswith(sent)


@given(texts, stops, st.data())
def test_what_can_no_longer_match_is_sent_at_once(
    text: str, stops: tuple[str, ...], data: st.DataObject
) -> None:
    """CS-15: only a prefix of a stop string is held back."""
    checker = StopChecker(stops)
    sent, seen = "", ""
    for piece in data.draw(cuts(text)):
        sent += checker.push(piece)
        seen += piece
        if checker.matched is None:
            held = seen[len(sent) :]
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_after_a_match_nothing_more_is_sent() -> None:
    checker = StopChecker(("x",))

    assert checker.push("axb") == "a"
    assert checker.push("c") == ""
    assert checker.flush() == ""
    assert checker.matched == "x"


def test_without_stop_strings_everything_passes() -> None:
    assert StopChecker(()).push("abc") == "abc"


def test_memory_grows_with_the_matched_prefix_and_not_with_the_stop_string() -> None:
    stops = tuple(char * 1_000_000 for char in "abcd")
    tracemalloc.start()
    try:
        checker = StopChecker(stops)
        assert checker.push("x" * 100 + "a" * 1000) == "x" * 100
        assert checker.push("b") == "a" * 1000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 100_000


@given(st.integers(1, 200), st.integers(0, 50), st.data())
def test_long_repetitive_stop_strings_match_as_short_ones_do(
    repeats: int, extra: int, data: st.DataObject
) -> None:
    """A text that nearly completes a periodic stop string again and again is where a naive search is quadratic."""
    stop = "ab" * repeats + "c"
    text = ("ab" * (repeats + extra) + "d") * 2 + "ab" * extra + stop + "z"
    checker = StopChecker((stop, "abd>"))
    sent = "".join(checker.push(piece) for piece in data.draw(cuts(text)))

    assert (sent, checker.matched) == (text[: text.index(stop)], stop)
