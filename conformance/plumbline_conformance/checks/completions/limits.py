"""Legacy completions without tokens, without a limit, and of prompts that are lists of ids."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import accepted, at, counted, taken
from plumbline_conformance.checks.completions.details import first
from plumbline_conformance.suite.model import Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.model import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
NEEDS = ("completions",)
PROMPT = "One two three"
DEFAULT = 16
IDS = [[1, 2, 3], [4, 5]]


def _body(target: Target, **fields: object) -> dict[str, object]:
    return {"model": target.model, "prompt": PROMPT, "temperature": 0, "seed": 1, **fields}


@scenario("completions/limits", "A prompt that is only repeated, and one without a limit", needs=NEEDS)
def limits(target: Target) -> Steps:
    yield Request(path="/completions", json=_body(target, max_tokens=0, echo=True))
    yield Request(path="/completions", json=_body(target))


@check("completions/limits/none", "Add nothing to the prompt where no token is allowed", "CMP-03")
def limits_none(seen: Transcript) -> Iterator[Problem]:
    """A beginning that the tokenizer adds may stand before the prompt; a server that reads 0 as no limit adds text."""
    exchange = accepted(at(seen, 0))
    text = str(first(exchange).get("text"))
    _, found, more = text.partition(PROMPT)
    if not found or more.strip():
        yield Problem(expected=repr(PROMPT), actual=repr(text)[:200], pointer="choices[0].text")


@check("completions/limits/default", "End after 16 tokens where no limit is given", "CMP-03")
def limits_default(seen: Transcript) -> Iterator[Problem]:
    """An answer may end for itself before that, and at the very last token."""
    exchange = at(seen, 1)
    count, reason = counted(exchange, "completion_tokens"), first(exchange).get("finish_reason")
    if count > DEFAULT or (reason == "length" and count != DEFAULT):
        wanted = f"at most {DEFAULT} tokens, and so many for `length`"
        yield Problem(expected=wanted, actual=f"{count}, {reason}", pointer="usage.completion_tokens")


@scenario("completions/id-lists", "A prompt of token ids, and two of them", needs=NEEDS)
def id_lists(target: Target) -> Steps:
    for prompt in (IDS[0], IDS):
        yield Request(path="/completions", json=_body(target, prompt=prompt, max_tokens=4))


@check("completions/id-lists/taken", "Take lists of token ids where one is taken", "CMP-02")
def id_lists_taken(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, 1)


@check("completions/id-lists/indexes", "Give one choice for each list of token ids", "CMP-02")
def id_lists_indexes(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, 0))
    body = accepted(at(seen, 1)).json
    choices = body.get("choices") if isinstance(body, dict) else None
    listed = choices if isinstance(choices, list) else []
    found = [choice.get("index") for choice in listed if isinstance(choice, dict)]
    if sorted(map(repr, found)) != sorted(map(repr, range(len(IDS)))):
        yield Problem(
            expected=repr(list(range(len(IDS)))), actual=repr(found)[:200], pointer="choices[].index"
        )


@check("completions/id-lists/counted", "Count several prompts of token ids as their ids", "CMP-09")
def id_lists_counted(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, 0))
    wanted, found = sum(map(len, IDS)), counted(at(seen, 1), "prompt_tokens")
    if found != wanted:
        yield Problem(expected=str(wanted), actual=str(found), pointer="usage.prompt_tokens")
