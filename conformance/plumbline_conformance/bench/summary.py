"""Reduce the samples of a load to rates and percentiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from plumbline_conformance.bench.load import LoadRun
from plumbline_conformance.bench.sample import RequestSample
from plumbline_conformance.console.options import OptionError

__all__ = ["BOUNDS", "Figures", "Point", "bounds_of", "percentile", "ratio", "summarise"]

BOUNDS = ("ttft", "tpot", "e2el")
"""What a target can bound, as vLLM's benchmark names them: first token, each further token, whole answer."""


class Figures(msgspec.Struct, frozen=True):
    """Milliseconds over all requests of a point."""

    mean: float
    p50: float
    p90: float
    p99: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What one server did under one load."""

    server: str
    load: str
    requests: int
    failed: int
    requests_per_second: float
    """Median of the rounds; so are the tokens per second. Failed requests do not count."""
    output_tokens_per_second: float
    rounds: list[float]
    """Output tokens per second of each round."""
    prompt_tokens: float | None
    """In the mean; None if the server does not count them."""
    output_tokens: float
    time_to_first_token: Figures | None
    time_per_output_token: Figures | None
    """Of answers with two pieces and tokens or more: the time after the first one by the number of the others."""
    gap: Figures | None
    """Between pieces as they arrive, also known as inter-token latency."""
    answer: Figures | None
    """From the request to the last byte."""
    goodput: float | None
    """Part of the requests that met every bound; None without bounds."""
    client_cpu: float
    error: str
    """The first failure."""


def percentile(values: Sequence[float], part: float) -> float:
    """Return a percentile of sorted values, interpolated between neighbours.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    place = part * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def bounds_of(texts: Sequence[str]) -> dict[str, float]:
    """Read bounds such as `ttft:500`, in milliseconds, as vLLM's `--goodput` has them.

    Raises:
        UnusableInput: one is not of this form.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in BOUNDS or not 0 < number < math.inf or name in found:
            raise OptionError(
                "--goodput",
                f"must be NAME:MILLISECONDS with a name of {', '.join(BOUNDS)}, each at most once, got {text!r}",
            )
        found[name] = number
    return found


def summarise(server: str, load: str, runs: Sequence[LoadRun], bounds: Mapping[str, float]) -> Point:
    """Summarise the rounds of one load on one server."""
    samples = list(chain.from_iterable(run.samples for run in runs))
    good = list(chain.from_iterable(map(_good, runs)))
    rates = [sum(sample.tokens for sample in _good(run)) / run.seconds for run in runs]
    return Point(
        server=server,
        load=load,
        requests=len(samples),
        failed=len(samples) - len(good),
        requests_per_second=statistics.median(len(_good(run)) / run.seconds for run in runs),
        output_tokens_per_second=statistics.median(rates),
        rounds=rates,
        prompt_tokens=_mean(sample.prompt_tokens for sample in good),
        output_tokens=_mean(sample.tokens for sample in good) or 0.0,
        time_to_first_token=_figures(sample.first - sample.sent for sample in good if sample.pieces),
        time_per_output_token=_figures(map(_per_token, filter(_has_gaps, good))),
        gap=_figures(chain.from_iterable(sample.gaps for sample in good)),
        answer=_figures(sample.ended - sample.sent for sample in good),
        goodput=_goodput(samples, bounds) if bounds else None,
        client_cpu=max(run.client_cpu for run in runs),
        error=next((sample.error for sample in samples if sample.error), ""),
    )


def ratio(first: Point, second: Point) -> tuple[float, float, float] | None:
    """Return how many times the tokens per second the first has: median, least and most over the rounds."""
    if not all(second.rounds):
        return None
    found = [a / b for a, b in zip(first.rounds, second.rounds, strict=True)]
    return statistics.median(found), min(found), max(found)


def _good(run: LoadRun) -> list[RequestSample]:
    return [sample for sample in run.samples if not sample.error]


def _has_gaps(sample: RequestSample) -> bool:
    """Return whether an answer shows the time of a token; one that came in one piece took none after the first."""
    return sample.pieces > 1 and sample.tokens > 1


def _per_token(sample: RequestSample) -> float:
    return (sample.last - sample.first) / (sample.tokens - 1)


def _mean(counts: Iterable[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return statistics.fmean(known) if known else None


def _figures(times: Iterable[float]) -> Figures | None:
    seconds = sorted(times)
    if not seconds:
        return None
    found = [statistics.fmean(seconds), *(percentile(seconds, part) for part in (0.5, 0.9, 0.99))]
    return Figures(*(each * 1000 for each in found))


def _goodput(samples: Sequence[RequestSample], bounds: Mapping[str, float]) -> float:
    return sum(_meets(sample, bounds) for sample in samples) / len(samples)


def _meets(sample: RequestSample, bounds: Mapping[str, float]) -> bool:
    """Return whether a request met every bound; a failed one, and one without an answer, met none."""
    if sample.error or not sample.pieces:
        return False
    times = {
        "ttft": sample.first - sample.sent,
        "tpot": _per_token(sample) if _has_gaps(sample) else 0.0,
        "e2el": sample.ended - sample.sent,
    }
    return all(times[name] * 1000 <= bound for name, bound in bounds.items())
