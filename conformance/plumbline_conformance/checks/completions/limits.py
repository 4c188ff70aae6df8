"""Check legacy completions with no tokens, with the default limit, and with lists of token ids."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import accepted, at, follow_up_accepted, only, usage_count
from plumbline_conformance.checks.completions.details import first
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
NEEDS = ("completions",)
PROMPT = "One two three"
DEFAULT = 16
IDS = [[1, 2, 3], [4, 5]]


def _body(target: Target, **fields: object) -> dict[str, object]:
    return {"model": target.model, "prompt": PROMPT, "temperature": 0, "seed": 1, **fields}


@scenario("completions/limits", "A prompt with echo and no tokens, and one without a limit", needs=NEEDS)
def limits(target: Target) -> Steps:
    yield Request(name="none", path="/completions", json=_body(target, max_tokens=0, echo=True))
    yield Request(name="default", path="/completions", json=_body(target))


@check("completions/limits/none", "Add nothing to the prompt if max_tokens is 0", "CMP-03", request="none")
def limits_none(seen: Transcript) -> Iterator[Problem]:
    """Detect a server that treats 0 as no limit. The tokenizer may add a start token before the prompt."""
    exchange = accepted(at(seen, "none"))
    text = str(first(exchange).get("text"))
    _, found, more = text.partition(PROMPT)
    if not found or more.strip():
        yield Problem(expected=as_json(PROMPT), actual=as_json(text)[:200], pointer="choices[0].text")


@check("completions/limits/default", "Stop after 16 tokens by default", "CMP-03", request="default")
def limits_default(seen: Transcript) -> Iterator[Problem]:
    """Check the number of tokens; an answer may end by itself earlier, or with the last token."""
    exchange = at(seen, "default")
    count, reason = usage_count(exchange, "completion_tokens"), first(exchange).get("finish_reason")
    if count > DEFAULT or (reason == "length" and count != DEFAULT):
        wanted = f"at most {DEFAULT} tokens, and exactly {DEFAULT} for `length`"
        yield Problem(expected=wanted, actual=f"{count}, {reason}", pointer="usage.completion_tokens")


@scenario("completions/id-lists", "A prompt of token ids, and two of them", needs=NEEDS)
def id_lists(target: Target) -> Steps:
    for name, prompt in (("one_list", IDS[0]), ("two_lists", IDS)):
        yield Request(name=name, path="/completions", json=_body(target, prompt=prompt, max_tokens=4))


@check("completions/id-lists/taken", "Accept several lists of token ids if one is accepted", "CMP-02")
def id_lists_taken(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "one_list", "two_lists")


@check(
    "completions/id-lists/indexes",
    "Give one choice for each list of token ids",
    "CMP-02",
    request="two_lists",
)
def id_lists_indexes(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "one_list"))
    body = accepted(at(seen, "two_lists")).json
    choices = body.get("choices") if isinstance(body, dict) else None
    listed = choices if isinstance(choices, list) else []
    found = [choice.get("index") for choice in listed if isinstance(choice, dict)]
    if sorted(map(repr, found)) != sorted(map(repr, range(len(IDS)))):
        yield Problem(
            expected=as_json(list(range(len(IDS)))), actual=as_json(found)[:200], pointer="choices[].index"
        )


@check(
    "completions/id-lists/counted",
    "Count several prompts of token ids as their ids",
    "CMP-09",
    request="two_lists",
)
def id_lists_counted(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "one_list"))
    wanted, found = sum(map(len, IDS)), usage_count(at(seen, "two_lists"), "prompt_tokens")
    if found != wanted:
        yield Problem(expected=str(wanted), actual=str(found), pointer="usage.prompt_tokens")


TOKEN = "64"
"""The id of a printable character in the vocabularies of most models; any id that ends no answer would do."""


@scenario("completions/bias", "One token forced with `logit_bias`", needs=NEEDS)
def bias(target: Target) -> Steps:
    yield Request(path="/completions", json=_body(target, max_tokens=6, logit_bias={TOKEN: 100}, logprobs=1))


@check("completions/bias/forced", "Write only the token that `logit_bias` forces", "CMP-09")
def bias_forced(seen: Transcript) -> Iterator[Problem]:
    """Check that all tokens are the same, as on chat completions (CHAT-12)."""
    logprobs = first(accepted(only(seen))).get("logprobs")
    tokens = logprobs.get("tokens") if isinstance(logprobs, dict) else None
    if not isinstance(tokens, list) or len(tokens) < 2:
        raise Inconclusive("the answer has fewer than two tokens with logprobs")
    if len(set(map(repr, tokens))) > 1:
        where = "choices[0].logprobs.tokens"
        yield Problem(expected="one token, repeated", actual=as_json(tokens)[:200], pointer=where)
