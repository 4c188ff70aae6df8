"""Ask a runner all questions, and print and write its scores (`plumbline vectors`)."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console

from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Count, Describe, OptionError, Positive, Texts
from plumbline_conformance.reports.conclude import File
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.vectors.compare import NotCompared, WrongAnswer
from plumbline_conformance.vectors.questions import FOLDER, SUITES, Question, counts, questions
from plumbline_conformance.vectors.runner import NoRunner, VectorRunner

__all__ = ["Score", "Scores", "VectorsCommand", "WrongVector"]

_RIGHT, _WRONG, _SKIPPED = "right", "wrong", "skipped"


class WrongVector(msgspec.Struct, frozen=True, kw_only=True):
    """One wrong answer."""

    id: str
    title: str
    rules: list[str]
    why: str


class Score(msgspec.Struct, kw_only=True):
    """How many answers of one file are right."""

    suite: str
    group: str
    right: int = 0
    wrong: int = 0
    skipped: int = 0
    law: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    """Right and wrong answers of the vectors that laws give."""
    reason: str = ""
    """Why questions were skipped."""


class Scores(msgspec.Struct, kw_only=True):
    """The result of a run; `--json` writes it."""

    name: str
    version: str
    scores: list[Score]
    differences: list[WrongVector]


_vectors = partial(Describe, "vectors")


class VectorsCommand(Command, frozen=True, kw_only=True):
    """Score a parser, template engine, client or grammar by known answers."""

    example = "plumbline vectors --run 'python my_runner.py' parsers/hermes"

    ids: Annotated[
        Texts,
        _vectors(
            "ids of vectors, prefixes or patterns, such as parsers/hermes",
            "ID",
            default="all",
            positional=True,
        ),
    ] = ()
    suites: Annotated[Texts, _vectors("only this suite; repeatable", name="suite", choices=SUITES)] = ()
    vectors: Annotated[
        Path, _vectors("folder of the vectors", "FOLDER", default="those that come with plumbline")
    ] = FOLDER
    command: Annotated[
        str | None,
        _vectors(
            "command of a runner, which answers JSON lines",
            "COMMAND",
            name="run",
            default="count the vectors",
        ),
    ] = None
    timeout: Annotated[Positive, _vectors("time limit of one answer", "SECONDS")] = 10.0
    show: Annotated[Count, Describe("reports", "wrong answers that are printed", "N")] = 20
    json: Annotated[
        File, Describe("reports", "write the scores and all wrong answers", "FILE", writes=True)
    ] = None

    def run(self, out: Console) -> int:
        """Score a runner; without one, count the vectors. Return 0 if no answer is wrong, otherwise 1."""
        if self.command is None:
            if self.ids or self.suites:
                raise OptionError("--run", "is missing: ID and --suite choose what a runner is asked")
            for suite, (files, cases) in counts(self.vectors).items():
                out.print(f"{suite}: {cases} vectors in {files} files", markup=False)
            return 0
        wanted = list(questions(self.vectors, self.suites, self.ids))
        if not wanted:
            raise OptionError("ID", f"is of no vector: {', '.join(self.ids)}; one is parsers/hermes/12/whole")
        scores = _asked(self.command, wanted, self.timeout)
        if self.json is not None:
            self.json.write_bytes(msgspec.json.format(msgspec.json.encode(scores), indent=1))
        _print(scores, out, self.show)
        return int(any(score.wrong for score in scores.scores))


def _asked(command: str, wanted: Sequence[Question], timeout: float) -> Scores:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise NoRunner(f"--run cannot be read: {error}") from None
    if not words:
        raise NoRunner("--run is empty: give the command that starts the runner.")
    runner = VectorRunner(words, timeout)
    try:
        found: dict[tuple[str, str], Score] = {}
        differences: list[WrongVector] = []
        for question in wanted:
            score = found.setdefault(
                (question.suite, question.group), Score(suite=question.suite, group=question.group)
            )
            _count(score, differences, question, runner)
        return Scores(
            name=runner.name, version=runner.version, scores=list(found.values()), differences=differences
        )
    finally:
        runner.close()


def _count(score: Score, differences: list[WrongVector], question: Question, runner: VectorRunner) -> None:
    answer = runner.ask(question.line)
    try:
        if "skipped" in answer:
            raise NotCompared(str(answer["skipped"])[:200])
        if "error" in answer:
            raise WrongAnswer(f"error: {str(answer['error'])[:300]}")
        question.check(answer)
    except NotCompared as reason:
        score.skipped += 1
        score.reason = score.reason or str(reason)
    except WrongAnswer as wrong:
        score.wrong += 1
        score.law[1] += question.source == "law"
        differences.append(
            WrongVector(id=question.id, title=question.title, rules=question.rules, why=str(wrong))
        )
    else:
        score.right += 1
        score.law[0] += question.source == "law"


def _print(scores: Scores, out: Console, show: int) -> None:
    for difference in scores.differences[:show]:
        out.print(printable(f"{difference.id}  {difference.title}"), markup=False)
        out.print(printable(f"    {', '.join(difference.rules)}: {difference.why}"), markup=False)
    if len(scores.differences) > show:
        out.print(f"… and {len(scores.differences) - show} more (--show N, --json FILE)", markup=False)
    for score in scores.scores:
        parts = [f"{score.right} of {score.right + score.wrong} right"] if score.right + score.wrong else []
        parts += [f"{score.skipped} skipped ({score.reason})"] if score.skipped else []
        out.print(printable(f"{score.suite}/{score.group}: {', '.join(parts)}"), markup=False)
    total: Counter[str] = Counter()
    for score in scores.scores:
        total.update({_RIGHT: score.right, _WRONG: score.wrong, _SKIPPED: score.skipped})
    compared = total[_RIGHT] + total[_WRONG]
    share = f" ({total[_RIGHT] / compared:.1%})" if compared else ""
    who = f"{scores.name} {scores.version}".strip()
    out.print(
        printable(
            f"{who}: {total[_RIGHT]} of {compared} answers are right{share}, {total[_SKIPPED]} skipped"
        ),
        markup=False,
    )
