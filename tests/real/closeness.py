"""Compare a served model with llama.cpp and with exact arithmetic: log probabilities of texts, and greedy answers.

Both programs round activations to 8 bits in groups, each in its own, so each is compared with the dequantised weights
in fp32 as transformers computes them. A greedy answer may leave the exact one only where rounding decides: where the
logits of both tokens differ by less than `_MOST_GAP`, either the exact ones or those with inputs rounded to 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from plumbline.answer.text.gguf.vocabulary import read_tokenizer

from .reference import Logits, logits_by_llama_cpp, logits_in_fp32
from .texts import PROMPTS, TEXTS
from .vocabulary import Verdict

__all__ = ["Adapted", "Served", "compare", "with_adapter"]

_LENGTH = 512
"""Tokens of a text."""
_ANSWER = 24
"""Tokens of a greedy answer."""
_MOST_RATIO = 1.005
"""Of our perplexity and a reference's."""
_MOST_GAP = 0.2


class Served(Protocol):
    """A model behind the server."""

    def tokens(self, text: str) -> list[int]:
        """Return the ids of a prompt."""

    def scores(self, ids: list[int]) -> list[float]:
        """Return the log probability of each token but the first."""

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """Return the likeliest tokens."""


class Adapted(NamedTuple):
    """The tokens of a text, and their exact log probabilities with an adapter and without."""

    ids: list[int]
    exact: NDArray[np.float64]
    plain: NDArray[np.float64]

    def judge(self, served: Served) -> Iterator[str]:
        """Try that a served model has the adapter."""
        found = np.array(served.scores(self.ids))
        ours, wanted = _perplexity(found), _perplexity(self.exact)
        if ours > wanted * _MOST_RATIO:
            yield f"the perplexity with an adapter is {ours:.3f}, more than 0.5 % above {wanted:.3f}"
        if np.abs(found - self.exact).mean() > np.abs(found - self.plain).mean() / 2:
            yield "the log probabilities with an adapter are not those of the adapted weights"


def with_adapter(file: Path, folder: Path) -> Adapted:
    """Write a random adapter of a model into a folder, and compute what it does to a text."""
    text = TEXTS["code"].read_text("utf-8")[: 12 * _LENGTH]
    ids = read_tokenizer(file).encode_prompt(text)[:_LENGTH]
    found = []
    for adapter in (folder, None):
        with logits_in_fp32(file, adapter) as logits:
            found.append(_scores(logits(ids)[:-1], ids[1:]))
    return Adapted(ids, *found)


class _Answer(NamedTuple):
    prompt: str
    before: list[int]
    ids: list[int]


class _Found(NamedTuple):
    """What a reference says: by text the log probabilities of its tokens, by answer its gaps and its own tokens."""

    scores: dict[str, NDArray[np.float64]]
    gaps: list[NDArray[np.float32]]
    """By answer and token: the best logit less that of our token."""


def compare(served: Served, file: Path) -> Verdict:
    """Compare the model with both references; llama.cpp is left out if llama-cpp-python is not installed."""
    texts = {
        kind: served.tokens(path.read_text("utf-8")[: 12 * _LENGTH])[:_LENGTH] for kind, path in TEXTS.items()
    }
    ours = {kind: np.array(served.scores(ids)) for kind, ids in texts.items()}
    answers = []
    for prompt in PROMPTS:
        before = served.tokens(prompt)
        answers.append(_Answer(prompt, before, served.greedy(before, _ANSWER)))
    with logits_in_fp32(file) as logits:
        exact = _asked(logits, texts, answers)
        rounded = _gaps(logits.rounded, answers)
    with logits_by_llama_cpp(file) as logits:
        theirs = None if logits is None else _asked(logits, texts, answers)
    problems = [*_perplexities(ours, exact, "exact arithmetic"), *_far(answers, exact.gaps, rounded)]
    row = {"greedy answers": _same(exact.gaps, "exact"), "with rounded inputs": _same(rounded, "computed")}
    for kind, scores in ours.items():
        row[kind] = f"{_perplexity(scores):.3f} / {_perplexity(exact.scores[kind]):.3f}"
    row["distance"] = f"{_distance(ours, exact.scores):.4f}"
    if theirs is not None:
        problems += _perplexities(ours, theirs, "llama.cpp")
        row["greedy answers"] += f", {_same(theirs.gaps, 'llama.cpp')}"
        for kind, scores in theirs.scores.items():
            row[kind] += f" / {_perplexity(scores):.3f}"
        row["distance"] += f" / {_distance(theirs.scores, exact.scores):.4f}"
    line = "; ".join(f"{name} {cell}" for name, cell in row.items())
    return Verdict(line, problems, row=row)


def _asked(logits: Logits, texts: Mapping[str, list[int]], answers: list[_Answer]) -> _Found:
    scores = {kind: _scores(logits(ids)[:-1], ids[1:]) for kind, ids in texts.items()}
    return _Found(scores, _gaps(logits, answers))


def _gaps(logits: Logits, answers: list[_Answer]) -> list[NDArray[np.float32]]:
    found = []
    for answer in answers:
        rows = logits([*answer.before, *answer.ids])[len(answer.before) - 1 : -1]
        found.append(rows.max(axis=-1) - _taken(rows, answer.ids))
    return found


def _taken(rows: NDArray[np.float32], ids: list[int]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.take_along_axis(rows, np.array(ids)[:, None], axis=-1)[:, 0]
    return found


def _scores(rows: NDArray[np.float32], ids: list[int]) -> NDArray[np.float64]:
    largest = rows.max(axis=-1).astype(np.float64)
    sums = np.log(np.exp(rows.astype(np.float64) - largest[:, None]).sum(axis=-1))
    found: NDArray[np.float64] = _taken(rows, ids) - largest - sums
    return found


def _perplexity(scores: NDArray[np.float64]) -> float:
    return math.exp(-scores.mean())


def _distance(some: Mapping[str, NDArray[np.float64]], others: Mapping[str, NDArray[np.float64]]) -> float:
    """Return the mean distance of two log probabilities of a token."""
    return float(np.mean([np.abs(scores - others[kind]).mean() for kind, scores in some.items()]))


def _perplexities(ours: Mapping[str, NDArray[np.float64]], reference: _Found, name: str) -> Iterator[str]:
    for kind, scores in ours.items():
        found, wanted = _perplexity(scores), _perplexity(reference.scores[kind])
        if found > wanted * _MOST_RATIO:
            yield f"the perplexity of {kind} is {found:.3f}, more than 0.5 % above {wanted:.3f} by {name}"


def _firsts(found: list[NDArray[np.float32]]) -> list[float]:
    """Return the gap at the first token of each answer that is not the reference's; 0 where there is none."""
    return [next((float(gap) for gap in gaps if gap > 0), 0.0) for gaps in found]


def _same(found: list[NDArray[np.float32]], name: str) -> str:
    firsts = _firsts(found)
    return f"{firsts.count(0.0)} of {len(firsts)} are the {name} ones, gap {max(firsts):.2f} at most"


def _far(
    answers: list[_Answer], exact: list[NDArray[np.float32]], rounded: list[NDArray[np.float32]]
) -> Iterator[str]:
    """Name the answers that leave the exact one where neither reference has a small gap."""
    for answer, gaps, others in zip(answers, exact, rounded, strict=True):
        for gap, other in zip(gaps, others, strict=True):
            if min(gap, other) >= _MOST_GAP:
                yield (
                    f"the answer to {answer.prompt!r} leaves the exact one where its gap is {gap:.2f}, "
                    f"{other:.2f} with rounded inputs"
                )
            if gap > 0:
                break
