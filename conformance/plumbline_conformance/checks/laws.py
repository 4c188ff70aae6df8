"""Registering laws: claims about one answer, each written once for the whole answer and the stream.

A law takes an exchange and reads off its request what it has to know. It is the check of a scenario, and it holds of
live traffic that asks for as much. What compares exchanges, or needs to know what was sent before, is no law and is
registered with `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plumbline_conformance.checks.common import accepted, at, last
from plumbline_conformance.suite.model import AnswerKind, Law, Problem, check
from plumbline_conformance.transcript.model import Transcript

__all__ = ["STREAM", "WHOLE", "Precondition", "both", "either", "refusal", "stream", "whole"]

WHOLE, STREAM = 0, 1
"""Where the answers stand in a scenario that asks for one thing in both forms."""
TitleAndRules = tuple[str, ...]
"""A title, and the rules."""
Precondition = Callable[[Transcript], object]


def _one(
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
    """Register a law of whole answers.

    Args:
        slug: the check's id.
        title: an imperative sentence.
        rules: the first one gives the level.
        place: which exchange of the scenario it looks at.
        before: raises what makes the scenario inconclusive.
        milder: see `check`.
    """
    return _one(slug, title, rules, "whole", place, before, milder)


def stream(
    slug: str,
    title: str,
    *rules: str,
    place: int = STREAM,
    before: Precondition | None = None,
    milder: bool = False,
) -> Callable[[Law], Law]:
    """Register a law of streams; see `whole`."""
    return _one(slug, title, rules, "stream", place, before, milder)


def both(
    slug: str,
    of_whole: TitleAndRules,
    of_stream: TitleAndRules,
    places: tuple[int, int] = (WHOLE, STREAM),
    before: Precondition | None = None,
) -> Callable[[Law], Law]:
    """Register a law twice: of whole answers as `scenario/name`, of streams as `scenario/stream-name`.

    Args:
        slug: the id of the check of the whole answer.
        of_whole: its title, and its rules.
        of_stream: title and rules of the check of the stream.
        places: which exchanges of the scenario they look at.
        before: raises what makes the scenario inconclusive.
    """
    scenario, _, name = slug.rpartition("/")

    def register(law: Law) -> Law:
        whole(slug, *of_whole, place=places[0], before=before)(law)
        return stream(f"{scenario}/stream-{name}", *of_stream, place=places[1], before=before)(law)

    return register


def either(slug: str, title: str, *rules: str) -> Callable[[Law], Law]:
    """Register a law as one check, which looks at the whole answer and then at the stream."""

    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            for exchange in [accepted(at(seen, place)) for place in (WHOLE, STREAM)]:
                yield from law(exchange)

        check(slug, title, *rules, law=law, place=WHOLE, of="either")(judge)
        return law

    return register


def refusal(slug: str, title: str, *rules: str) -> Callable[[Law], Law]:
    """Register a law of refusals, which looks at the last exchange of its scenario."""

    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            yield from law(last(seen))

        check(slug, title, *rules, law=law, of="refusal")(judge)
        return law

    return register
