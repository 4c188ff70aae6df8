"""Compare a served model with llama.cpp and with exact arithmetic: log probabilities of texts, and greedy answers.

Both programs round activations to 8 bits in groups, each in its own, so each is compared with the dequantised weights
in fp32 as transformers computes them. A greedy answer may leave the exact one only where rounding decides: where the
logits of both tokens differ by less than `_MOST_GAP`, either the exact ones or those with inputs rounded to 8 bits.
The perplexity of a text is compared with those of both, too. Of 511 tokens of SmolLM2 ours was 0.8 % below to 1.6 %
above the exact one, so several windows are asked: of 2,044 the ratio varies by 0.2 to 0.3 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from plumbline.answer.text.gguf.vocabulary import read_tokenizer

from .reference import Logits, logits_by_llama_cpp, logits_in_fp32
from .texts import PROMPTS, TEXTS
from .vocabulary import Verdict

__all__ = ["Adapted", "Served", "compare", "with_adapter"]

_LENGTH, _WINDOWS = 512, 4
"""Tokens of a window, and windows of a text at most. A window shorter than a quarter is left out."""
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
    """The windows of a text, and their log probabilities: exact with an adapter, with rounded inputs, without one."""

    windows: list[list[int]]
    exact: NDArray[np.float64]
    rounded: NDArray[np.float64]
    plain: NDArray[np.float64]

    def judge(self, served: Served) -> Iterator[str]:
        """Try that a served model has the adapter."""
        found = _of_windows(served.scores, self.windows)
        yield from _above("with an adapter", found, self.exact, self.rounded)
        if np.abs(found - self.exact).mean() > np.abs(found - self.plain).mean() / 2:
            yield "the log probabilities with an adapter are not those of the adapted weights"


def with_adapter(file: Path, folder: Path) -> Adapted:
    """Write a random adapter of a model into a folder, and compute what it does to a text."""
    windows = _windows(file, TEXTS["code"])
    with logits_in_fp32(file, folder) as logits:
        exact, rounded = _of_logits(logits, windows), _of_logits(logits.rounded, windows)
    with logits_in_fp32(file) as logits:
        return Adapted(windows, exact, rounded, _of_logits(logits, windows))


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
    texts = {kind: _windows(file, path) for kind, path in TEXTS.items()}
    ours = {kind: _of_windows(served.scores, windows) for kind, windows in texts.items()}
    answers = []
    for prompt in PROMPTS:
        before = served.tokens(prompt)
        answers.append(_Answer(prompt, before, served.greedy(before, _ANSWER)))
    with logits_in_fp32(file) as logits:
        exact = _asked(logits, texts, answers)
        rounded = _asked(logits.rounded, texts, answers)
    with logits_by_llama_cpp(file) as logits:
        theirs = None if logits is None else _asked(logits, texts, answers)
    problems = [*_far(answers, exact.gaps, rounded.gaps)]
    row = {
        "greedy answers": _same(exact.gaps, "exact"),
        "with rounded inputs": _same(rounded.gaps, "computed"),
    }
    for kind, scores in ours.items():
        problems += _above(f"of {kind}", scores, exact.scores[kind], rounded.scores[kind])
        row[kind] = " / ".join(
            f"{_perplexity(each):.3f}" for each in (scores, exact.scores[kind], rounded.scores[kind])
        )
    row["distance"] = f"{_distance(ours, exact.scores):.4f}"
    if theirs is not None:
        row["greedy answers"] += f", {_same(theirs.gaps, 'llama.cpp')}"
        for kind, scores in theirs.scores.items():
            problems += _above(f"of {kind}, beside llama.cpp,", ours[kind], scores)
            row[kind] += f" / {_perplexity(scores):.3f}"
        row["distance"] += f" / {_distance(theirs.scores, exact.scores):.4f}"
    line = "; ".join(f"{name} {cell}" for name, cell in row.items())
    return Verdict(line, problems, row=row)


def _windows(file: Path, path: Path) -> list[list[int]]:
    """Cut a text into windows that begin with the tokens that the tokenizer sets before a text."""
    tokenizer = read_tokenizer(file)
    start, ids = tokenizer.encode_prompt(""), tokenizer.encode_prompt(path.read_text("utf-8"))
    ids, length = ids[len(start) :], _LENGTH - len(start)
    cut = [[*start, *ids[each * length : (each + 1) * length]] for each in range(_WINDOWS)]
    return [window for window in cut if 4 * len(window) >= _LENGTH]


def _of_windows(
    scores: Callable[[list[int]], Sequence[float]], windows: list[list[int]]
) -> NDArray[np.float64]:
    return np.concatenate([np.array(scores(window)) for window in windows])


def _of_logits(logits: Logits, windows: list[list[int]]) -> NDArray[np.float64]:
    return np.concatenate([_scores(logits(window)[:-1], window[1:]) for window in windows])


def _asked(logits: Logits, texts: Mapping[str, list[list[int]]], answers: list[_Answer]) -> _Found:
    scores = {kind: _of_logits(logits, windows) for kind, windows in texts.items()}
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


def _above(name: str, ours: NDArray[np.float64], *references: NDArray[np.float64]) -> Iterator[str]:
    """Name a perplexity that is above those of all references."""
    found, wanted = _perplexity(ours), [_perplexity(each) for each in references]
    if found > max(wanted) * _MOST_RATIO:
        others = " and ".join(f"{each:.3f}" for each in wanted)
        yield f"the perplexity {name} is {found:.3f}, more than 0.5 % above {others}"


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
