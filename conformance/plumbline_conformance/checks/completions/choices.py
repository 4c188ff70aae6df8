"""Check several choices for each of several prompts."""

from __future__ import annotations

from collections.abc import Generator

from plumbline_conformance.checks.completions import basics
from plumbline_conformance.checks.laws import STREAM, WHOLE, stream, whole
from plumbline_conformance.suite.scenario import Request, Target, scenario
from plumbline_conformance.transcript.exchange import Exchange


@scenario("completions/choices", "Two choices for each of two prompts", needs=("completions",))
def choices(target: Target) -> Generator[Request, Exchange, None]:
    body = basics.request(target, n=2, temperature=1)
    yield Request(name=WHOLE, path="/completions", json={**body, "echo": True})
    yield Request(name=STREAM, path="/completions", json={**body, "stream": True})


whole("completions/choices/shape", "Answer as the contract requires", "CMP-01")(basics.shape)
whole("completions/choices/indexes", "Give two choices for each prompt, with indexes from 0", "CMP-02")(
    basics.indexes
)
whole("completions/choices/order", "Begin each choice with the prompt of its index", "CMP-04", "CMP-02")(
    basics.order
)
stream("completions/choices/stream-indexes", "Stream two choices for each prompt", "CMP-02", "CMP-04")(
    basics.stream_indexes
)
stream("completions/choices/stream-finish", "Finish each streamed choice exactly once, at its end", "CMP-08")(
    basics.stream_finish
)
