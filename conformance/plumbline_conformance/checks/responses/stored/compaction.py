"""Check compaction of a conversation."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import accepted, at, follow_up_accepted, refused, usage_adds_up
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.suite.scenario import Problem, Request, Target, check, scenario
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

TALK: list[dict[str, object]] = [
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello, Ada."},
    {"role": "user", "content": "Good."},
]


@scenario(
    "responses/compact", "A compacted conversation, and its continuation", needs=("responses", "compact")
)
def compact(target: Target) -> Generator[Request, Exchange, None]:
    body = {"model": target.model, "input": TALK}
    made = yield Request(name="compacted", path="/responses/compact", json=body)
    yield Request(name="no_model", path="/responses/compact", json={"input": TALK})
    output = made.json.get("output") if isinstance(made.json, dict) else None
    if isinstance(output, list) and output:
        continued = [*output, {"role": "user", "content": "And now?"}]
        follow_up = create_response(target, continued, max_output_tokens=16)
        yield Request(name="continued", path="/responses", json=follow_up)


@check(
    "responses/compact/shape", "Answer with the object `response.compaction`", "ST-15", request="compacted"
)
def compact_shape(seen: Transcript) -> Iterator[Problem]:
    yield from violations("CompactResource", accepted(at(seen, "compacted")).json)


@check(
    "responses/compact/item", "Put an item of type `compaction` into the output", "ST-15", request="compacted"
)
def compact_item(seen: Transcript) -> Iterator[Problem]:
    answer = accepted(at(seen, "compacted")).json
    output = answer.get("output") if isinstance(answer, dict) else None
    found = [one for one in output if isinstance(one, dict)] if isinstance(output, list) else []
    if not any(
        one.get("type") == "compaction" and isinstance(one.get("encrypted_content"), str) for one in found
    ):
        wanted = "a compaction with encrypted_content"
        yield Problem(expected=wanted, actual=as_json(output)[:200], pointer="output")


@check("responses/compact/usage", "Count tokens so that the total is the sum", "R-10", request="compacted")
def compact_usage(seen: Transcript) -> Iterator[Problem]:
    answer = accepted(at(seen, "compacted")).json
    usage = answer.get("usage") if isinstance(answer, dict) else None
    yield from usage_adds_up(usage, prompt="input_tokens", completion="output_tokens")


@check("responses/compact/no-model", "Refuse compaction without a model", "ERR-02")
def compact_no_model(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "compacted"))
    yield from refused(at(seen, "no_model"), 400, 422)


@check("responses/compact/taken", "Accept the compacted items as input", "R-13")
def compact_taken(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "compacted", "continued")
