"""Register laws: checks of one answer, for non-streaming answers and streams.

A law takes an exchange and reads its expectations from the request. It serves as the check of a scenario and applies to
live traffic with the same features. Checks that compare exchanges are not laws; register them with `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plumbline_conformance.checks.common import accepted, at, group, only
from plumbline_conformance.suite.scenario import AnswerKind, Law, Problem, about, check
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["STREAM", "WHOLE", "Precondition", "both", "either", "refusal", "stream", "streams", "whole"]

WHOLE, STREAM = "whole", "stream"
"""The names of a request without and with `stream`, which most scenarios send."""
TitleAndRules = tuple[str, ...]
"""The title, then the rules."""
Precondition = Callable[[Transcript], object]


def _register_as(
    slug: str,
    title: str,
    rules: TitleAndRules,
    of: AnswerKind,
    request: str,
    before: Precondition | None,
    milder: bool,
) -> Callable[[Law], Law]:
    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            if before is not None:
                before(seen)
            exchange = accepted(at(seen, request))
            yield from about(exchange, law(exchange))

        check(slug, title, *rules, milder=milder, law=law, request=request, of=of)(judge)
        return law

    return register


def whole(
    slug: str,
    title: str,
    *rules: str,
    request: str = WHOLE,
    before: Precondition | None = None,
    milder: bool = False,
) -> Callable[[Law], Law]:
    """Register a law of non-streaming answers.

    Args:
        slug: the check's id.
        title: an imperative sentence.
        rules: the first one gives the level.
        request: the name of the request in the scenario.
        before: raises Inconclusive if the law cannot be applied to the scenario.
        milder: see `check`.
    """
    return _register_as(slug, title, rules, "whole", request, before, milder)


def stream(
    slug: str,
    title: str,
    *rules: str,
    request: str = STREAM,
    before: Precondition | None = None,
    milder: bool = False,
) -> Callable[[Law], Law]:
    """Register a law of streams; see `whole`."""
    return _register_as(slug, title, rules, "stream", request, before, milder)


def streams(slug: str, title: str, *rules: str, request: str = STREAM) -> Callable[[Law], Law]:
    """Register a law of a group of streams, which are the same request again.

    Only the problems of the first stream that breaks the law are reported.
    """

    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            for exchange in group(seen, request):
                problems = list(law(accepted(exchange)))
                yield from about(exchange, problems)
                if problems:
                    return

        check(slug, title, *rules, law=law, request=request, of="stream")(judge)
        return law

    return register


def both(
    slug: str,
    of_whole: TitleAndRules,
    of_stream: TitleAndRules,
    requests: tuple[str, str] = (WHOLE, STREAM),
    before: Precondition | None = None,
    milder: bool = False,
) -> Callable[[Law], Law]:
    """Register a law twice: for non-streaming answers as `scenario/name`, for streams as `scenario/stream-name`.

    Args:
        slug: the id of the check of the non-streaming answer.
        of_whole: title and rules of that check.
        of_stream: title and rules of the check of the stream.
        requests: the names of the two requests in the scenario.
        before: raises Inconclusive if the law cannot be applied to the scenario.
        milder: see `check`.
    """
    scenario, _, name = slug.rpartition("/")

    def register(law: Law) -> Law:
        whole(slug, *of_whole, request=requests[0], before=before, milder=milder)(law)
        streamed = f"{scenario}/stream-{name}"
        return stream(streamed, *of_stream, request=requests[1], before=before, milder=milder)(law)

    return register


def either(slug: str, title: str, *rules: str) -> Callable[[Law], Law]:
    """Register a law as one check of the non-streaming answer and the stream."""

    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            for exchange in [accepted(at(seen, name)) for name in (WHOLE, STREAM)]:
                yield from about(exchange, law(exchange))

        check(slug, title, *rules, law=law, request=WHOLE, of="either")(judge)
        return law

    return register


def refusal(slug: str, title: str, *rules: str) -> Callable[[Law], Law]:
    """Register a law of refusals, for a scenario that sends one request."""

    def register(law: Law) -> Law:
        def judge(seen: Transcript) -> Iterator[Problem]:
            yield from law(only(seen))

        check(slug, title, *rules, law=law, of="refusal")(judge)
        return law

    return register
