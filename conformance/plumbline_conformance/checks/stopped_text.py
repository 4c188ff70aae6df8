"""Compare an answer that a stop string ended with the answer without it.

Neither temperature 0 nor a seed guarantees equal answers, so a difference alone is not a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from plumbline_conformance.suite.scenario import Broken, Inconclusive, Rejected

__all__ = ["same_answer", "texts_of"]

_ENOUGH = 16
"""Equal characters that are enough to treat two texts as the same answer."""
_DISTINCTIVE = 3
"""Characters; a shorter rest, such as a full stop, ends many different texts."""


def same_answer(plain: str, word: str, found: str, others: Iterable[str]) -> bool:
    """Return whether an unexpected text is the first answer, stopped at the wrong place, and not a different answer.

    A text that continues with the stop string, or with what follows it, is the first answer. A text that ends early, or
    within the stop string, or continues with a character or two, can be a different answer. Then the other answers
    must show that the server repeats itself.

    Args:
        plain: the first answer.
        word: the stop string, which the first answer contains.
        found: the text of the answer to the request with the stop string, different from the expected one.
        others: the texts of the other answers to requests with the stop string; if the server repeats itself, each
            equals `found` or the expected text.
    """
    start = plain.find(word)
    continues = False
    wanted, after = plain[:start], plain[start + len(word) :]
    if found.startswith(wanted):
        rest = found[len(wanted) :]
        continues = bool(after) and rest[:_ENOUGH] == after[:_ENOUGH]
        if rest.startswith(word) or (continues and len(after) >= _DISTINCTIVE):
            return True
    witnesses = list(others)
    return (
        (continues or (wanted + word).startswith(found))
        and bool(witnesses)
        and all(text in (wanted, found) for text in witnesses)
    )


def texts_of(reads: Iterable[Callable[[], object]]) -> Iterator[str]:
    """Return the texts of the answers that have one."""
    for read in reads:
        try:
            text = read()
        except (Broken, Inconclusive, Rejected):
            continue
        if isinstance(text, str):
            yield text
