"""Judge the answers of a server by those of a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.verify.causes import Cause, failing
from plumbline_conformance.verify.samples import AnswerFacts, Row
from plumbline_conformance.verify.statistics import Share, fisher, mean, share, triggers

__all__ = ["Asked", "Figure", "Findings", "RowFailure", "findings_of", "percent"]

Verdict = Literal["same", "worse", ""]
LEVEL = 0.01
"""A difference is one if chance would show it in fewer than this share of comparisons."""
_START = 64
"""Characters of an answer that greedy servers with the same weights agree on, whatever their kernels round."""
_LEAST_ALIKE = 0.9


class Asked(msgspec.Struct, frozen=True):
    """A row, the baseline's results for it, and the answers of the server."""

    row: Row
    baseline: Sequence[AnswerFacts]
    server: Sequence[AnswerFacts]
    command: str = ""
    """What sends the row again."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its interval of 95 %, and what it says about the server."""

    name: str
    value: float | None
    low: float
    high: float
    of: int
    """How many answers or rows it is a share of."""
    baseline: float | None = None
    p: float | None = None
    verdict: Verdict = ""
    note: str = ""


class RowFailure(msgspec.Struct, frozen=True):
    """A row that fails."""

    row: int
    problems: list[str]
    command: str


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found; `--json` writes it."""

    server: str
    rows: int
    answers: int
    figures: list[Figure]
    finish_reasons: dict[str, dict[str, int]]
    """For each finish reason of the baseline, how often the server ended with which."""
    causes: list[Cause]
    failures: list[RowFailure]

    @property
    def status(self) -> int:
        """The exit status: 1 if a figure is worse than the baseline's or the sampling is wrong, 2 without answers."""
        if not self.figures[0].value:
            return 2
        wrong = any(figure.verdict == "worse" for figure in self.figures)
        return int(wrong or any(cause.kind == "sampling" for cause in self.causes))


def findings_of(asked: Sequence[Asked], causes: Sequence[Cause], server: str) -> Findings:
    """Judge the answers."""
    # The same rows on both sides: a baseline may have results for a part of them.
    compared = [one for one in asked if one.baseline] or asked
    figures = [_answered(compared), _triggers(asked), *_calls(compared), _prompts(asked), _starts(asked)]
    return Findings(
        server=server,
        rows=len(asked),
        answers=sum(len(one.server) for one in asked),
        figures=[figure for figure in figures if figure is not None],
        finish_reasons=_finish_reasons(asked),
        causes=list(causes),
        failures=[
            RowFailure(one.row.number, problems, one.command)
            for one in asked
            if (problems := [*dict.fromkeys(map(printable, failing(one.row, one.baseline, one.server)))])
        ],
    )


def _figure(name: str, server: Share, baseline: Share, note: str = "") -> Figure:
    p = fisher(server, baseline) if baseline.all else None
    return Figure(
        name=name,
        value=server.value,
        low=server.low,
        high=server.high,
        of=server.all,
        baseline=baseline.value,
        p=p,
        verdict="" if p is None or not server.all else "worse" if p < LEVEL else "same",
        note=note,
    )


def _answered(asked: Sequence[Asked]) -> Figure:
    def count(results: Sequence[AnswerFacts]) -> Share:
        return share(sum(not one.error for one in results), len(results))

    return _figure(
        "answered",
        count([one for each in asked for one in each.server]),
        count([one for each in asked for one in each.baseline]),
    )


def _triggers(asked: Sequence[Asked]) -> Figure | None:
    def called(results: Sequence[AnswerFacts]) -> list[bool]:
        return [one.triggers for one in results if not one.error]

    pairs = [(called(each.baseline), called(each.server)) for each in asked]
    pairs = [pair for pair in pairs if pair[0] and pair[1]]
    if not pairs:
        return None
    found = triggers(pairs)
    return Figure(
        name="triggers (F1)",
        value=found.f1,
        low=found.low,
        high=found.high,
        of=len(pairs),
        p=found.p,
        verdict="worse" if found.p < LEVEL else "same",
        note=f"precision {percent(found.precision)}, recall {percent(found.recall)}; tools are called in "
        f"{100 * found.more:+.1f} % of answers more than by the baseline",
    )


def _calls(asked: Sequence[Asked]) -> list[Figure]:
    def calling(results: Sequence[Sequence[AnswerFacts]]) -> list[AnswerFacts]:
        return [one for each in results for one in each if one.triggers]

    server, baseline = calling([one.server for one in asked]), calling([one.baseline for one in asked])
    rights: tuple[tuple[str, Callable[[AnswerFacts], bool]], ...] = (
        ("known names", lambda one: one.known),
        ("schema accuracy", lambda one: bool(one.calls) and one.known and one.valid),
    )
    return [
        _figure(
            name,
            share(sum(map(right, server)), len(server)),
            share(sum(map(right, baseline)), len(baseline)),
        )
        for name, right in rights
    ]


def _prompts(asked: Sequence[Asked]) -> Figure | None:
    pairs = [
        (
            {one.prompt_tokens for one in each.baseline} - {None},
            {one.prompt_tokens for one in each.server} - {None},
        )
        for each in asked
    ]
    compared = [wanted == found for wanted, found in pairs if wanted and found]
    if not compared:
        return None
    equal = share(sum(compared), len(compared))
    return Figure(
        name="equal prompts",
        value=equal.value,
        low=equal.low,
        high=equal.high,
        of=equal.all,
        baseline=1.0,
        verdict="same" if all(compared) else "worse",
        note="tokens of the prompt, by `usage`",
    )


def _starts(asked: Sequence[Asked]) -> Figure | None:
    """Compare how greedy answers begin."""
    shares: list[float] = []
    for entry in asked:
        known = {start_of(each) for each in entry.baseline if not each.error}
        found = [start_of(one) in known for one in entry.server if not one.error]
        if entry.row.body.get("temperature") == 0 and known and found:
            shares.append(sum(found) / len(found))
    if not shares:
        return None
    value, low, high = mean(shares)
    return Figure(
        name="equal beginnings",
        value=value,
        low=low,
        high=high,
        of=len(shares),
        baseline=1.0,
        verdict="worse" if high < _LEAST_ALIKE else "same",
        note=f"{_START} characters of answers at temperature 0; a row counts once, however often it is asked",
    )


def start_of(result: AnswerFacts) -> str:
    """Return how an answer begins: its text, or else its calls."""
    return (result.content or repr(result.calls))[:_START]


def _finish_reasons(asked: Sequence[Asked]) -> dict[str, dict[str, int]]:
    pairs = Counter(
        (_finish(wanted), _finish(found)) for one in asked for wanted in one.baseline for found in one.server
    )
    table: dict[str, dict[str, int]] = {}
    for (wanted, found), count in sorted(pairs.items()):
        table.setdefault(wanted, {})[found] = count
    return table


def _finish(result: AnswerFacts) -> str:
    return printable(result.finish[:_START]) or "failed"


def percent(value: float | None) -> str:
    """Return a share as people read it; a dash for that of nothing."""
    return "—" if value is None else f"{100 * value:.1f} %"
