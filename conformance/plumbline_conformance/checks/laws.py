"""Register laws: checks of one answer, for non-streaming answers and streams.

A law takes an exchange and reads its expectations from the request. It serves as the check of a scenario and applies to
live traffic with the same features. Checks that compare exchanges are not laws; register them with `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plumbline_conformance.checks.common import accepted, at, last
from plumbline_conformance.suite.model import AnswerKind, Law, Problem, check
from plumbline_conformance.transcript.model import Transcript

__all__ = ["STREAM", "WHOLE", "Precondition", "both", "either", "refusal", "stream", "streams", "whole"]

WHOLE, STREAM = 0, 1
"""Indexes of the two answers in a scenario that sends a request without and with `stream`."""
TitleAndRules = tuple[str, ...]
"""The title, then the rules."""
Precondition = Callable[[Transcript], object]


def _register_as(
    slug: str,
    title: str,
    rules: TitleAndRules,
    of: AnswerKind,
    place: int,
    before: Precondition | None,
    milder: bool,
) -> Callable[[Law], Law]:
    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            if before is not None:
                before(seen)
            yield from law(accepted(at(seen, place)))

        check(slug, title, *rules, milder=milder, law=law, place=place, of=of)(judge)
        return law

    return register


def whole(
    slug: str,
    title: str,
    *rules: str,
    place: int = WHOLE,
    before: Precondition | None = None,
    milder: bool = False,
) -> Callable[[Law], Law]:
    """Register a law of non-streaming answers.

    Args:
        slug: the check's id.
        title: an imperative sentence.
        rules: the first one gives the level.
        place: the index of the exchange in the scenario.
        before: raises Inconclusive if the law cannot be applied to the scenario.
        milder: see `check`.
    """
    return _register_as(slug, title, rules, "whole", place, before, milder)


def stream(
    slug: str,
    title: str,
    *rules: str,
    place: int = STREAM,
    before: Precondition | None = None,
    milder: bool = False,
) -> Callable[[Law], Law]:
    """Register a law of streams; see `whole`."""
    return _register_as(slug, title, rules, "stream", place, before, milder)


def streams(slug: str, title: str, *rules: str, first: int = 0) -> Callable[[Law], Law]:
    """Register a law of all streams of a scenario that repeats one, from the exchange `first` on.

    What is wrong with the first stream that breaks the law is reported; the others are the same request again.
    """

    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            for place in range(first, max(len(seen.exchanges), first + 1)):
                problems = list(law(accepted(at(seen, place))))
                yield from problems
                if problems:
                    return

        check(slug, title, *rules, law=law, place=first, of="stream")(judge)
        return law

    return register


def both(
    slug: str,
    of_whole: TitleAndRules,
    of_stream: TitleAndRules,
    places: tuple[int, int] = (WHOLE, STREAM),
    before: Precondition | None = None,
) -> Callable[[Law], Law]:
    """Register a law twice: for non-streaming answers as `scenario/name`, for streams as `scenario/stream-name`.

    Args:
        slug: the id of the check of the non-streaming answer.
        of_whole: title and rules of that check.
        of_stream: title and rules of the check of the stream.
        places: the indexes of the two exchanges in the scenario.
        before: raises Inconclusive if the law cannot be applied to the scenario.
    """
    scenario, _, name = slug.rpartition("/")

    def register(law: Law) -> Law:
        whole(slug, *of_whole, place=places[0], before=before)(law)
        return stream(f"{scenario}/stream-{name}", *of_stream, place=places[1], before=before)(law)

    return register


def either(slug: str, title: str, *rules: str) -> Callable[[Law], Law]:
    """Register a law as one check of the non-streaming answer and the stream."""

    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            for exchange in [accepted(at(seen, place)) for place in (WHOLE, STREAM)]:
                yield from law(exchange)

        check(slug, title, *rules, law=law, place=WHOLE, of="either")(judge)
        return law

    return register


def refusal(slug: str, title: str, *rules: str) -> Callable[[Law], Law]:
    """Register a law of refusals, for the last exchange of the scenario."""

    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            yield from law(last(seen))

        check(slug, title, *rules, law=law, of="refusal")(judge)
        return law

    return register
