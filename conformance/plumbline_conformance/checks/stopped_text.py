"""What a stop string left, held against the answer without it: temperature 0 promises little, and seeds are a wish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from plumbline_conformance.suite.model import Broken, Inconclusive, Rejected

__all__ = ["same_answer", "texts_of"]

_ALIKE = 16
"""Characters, after which two texts are taken for the same."""
_TELLING = 3
"""Characters; what is shorter, such as a full stop, ends many texts."""


def same_answer(plain: str, word: str, found: str, others: Iterable[str]) -> bool:
    """Whether a text that is not what stood before the stop string is still the first answer, wrongly stopped.

    One that goes on with the stop string, or without it alone, can be no other. One that ends too early, or within the
    stop string, or goes on with a character or two, may be what a model wrote that draws anew: it takes witnesses that
    the server repeats itself.

    Args:
        plain: the first answer.
        word: the stop string, which stands in it.
        found: the text with the stop string, not equal to what stood before it.
        others: the texts of the other answers with the stop string: each of them is this text as well, or the right
            one, where the server repeats itself.
    """
    start = plain.find(word)
    goes_on = False
    wanted, after = plain[:start], plain[start + len(word) :]
    if found.startswith(wanted):
        rest = found[len(wanted) :]
        goes_on = bool(after) and rest[:_ALIKE] == after[:_ALIKE]
        if rest.startswith(word) or (goes_on and len(after) >= _TELLING):
            return True
    witnesses = list(others)
    return (
        (goes_on or (wanted + word).startswith(found))
        and bool(witnesses)
        and all(text in (wanted, found) for text in witnesses)
    )


def texts_of(reads: Iterable[Callable[[], object]]) -> Iterator[str]:
    """The texts of answers, of those that have one."""
    for read in reads:
        try:
            text = read()
        except (Broken, Inconclusive, Rejected):
            continue
        if isinstance(text, str):
            yield text
