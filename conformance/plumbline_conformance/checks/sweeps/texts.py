"""Check that the model sees all text of a prompt: characters of every script, escaped or not, and all of a long one."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import accepted, at, usage_count
from plumbline_conformance.checks.sample_requests import JSON, chat, user
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
COPIES = 12
KINDS = {
    "Latin": "é",
    "Greek": "Ω",
    "Cyrillic": "ж",
    "Arabic": "م",
    "Devanagari": "ह",
    "Han": "界",
    "emoji": "🌊",
}
"""A character of each script, by the name of its request; it is repeated with spaces, so that no two are one token."""
PLAIN = "ASCII"
MIXED = 'Grüße, Ωμέγα, жизнь, مرحبا, हिन्दी, 世界, e\u0301, 🌊👩‍👩‍👧, \u00a0\u2028 \u200d, “quotes” \\ " \t\r\n end'
"""Text that JSON writes with and without escapes, and that careless servers decode in another way."""
COUNTED = "prompt_tokens"


@scenario(
    "chat/scripts", "A prompt, the same with text of each script, and one text in two spellings of JSON"
)
def scripts(target: Target) -> Steps:
    asked = {
        "empty": "Repeat:",
        PLAIN: "Repeat:" + " q" * COPIES,
        **{kind: "Repeat:" + f" {one}" * COPIES for kind, one in KINDS.items()},
    }
    for name, text in asked.items():
        body = chat(target, messages=user(text), max_tokens=1)
        yield Request(name=name, path="/chat/completions", json=body)
    body = chat(target, messages=user(MIXED), max_tokens=1)
    body[target.limit] = body.pop("max_tokens")  # Sent as it is, so it is not renamed on its way.
    for name, escaped in (("escaped", True), ("plain", False)):
        content = json.dumps(body, ensure_ascii=escaped).encode()
        yield Request(name=name, path="/chat/completions", content=content, headers=JSON)


@check("chat/scripts/read", "Show the model text of every script", "CHAT-13")
def scripts_read(seen: Transcript) -> Iterator[Problem]:
    """Detect by the token count that a server drops characters: each of the copies has a token at least."""
    empty = usage_count(at(seen, "empty"), COUNTED)
    if usage_count(at(seen, PLAIN), COUNTED) < empty + COPIES:
        raise Inconclusive("the usage counts less than the letters of ASCII: it is an estimate")
    for kind in KINDS:
        found = usage_count(at(seen, kind), COUNTED)
        if found < empty + COPIES:
            wanted = f"at least {empty + COPIES}, for {COPIES} characters more"
            yield Problem(expected=wanted, actual=str(found), pointer=f"usage.{COUNTED}", exchange=kind)


@check("chat/scripts/same", "Read escaped characters as the same text", "CHAT-13", request="plain")
def scripts_same(seen: Transcript) -> Iterator[Problem]:
    wanted, found = (usage_count(at(seen, name), COUNTED) for name in ("escaped", "plain"))
    if wanted != found:
        shown = f"{wanted}, as with escapes"
        yield Problem(expected=shown, actual=str(found), pointer=f"usage.{COUNTED}")


ECHOED = "Grüße, 世界 🌊: “it’s” 2 × 3\tok"


@scenario("completions/echo-text", "A prompt of many scripts, echoed", needs=("completions",))
def echo(target: Target) -> Steps:
    body = {"model": target.model, "prompt": ECHOED, "echo": True, "max_tokens": 1, "temperature": 0}
    yield Request(path="/completions", json=body)


@check("completions/echo-text/whole", "Echo the prompt as it was sent", "CMP-04")
def echo_whole(seen: Transcript) -> Iterator[Problem]:
    """Compare what tokenizers keep: some add white space or a first token, drop case and accents, or lack the emoji."""
    body = accepted(seen.exchanges[0]).json if seen.exchanges else None
    choices = objects_in(body.get("choices")) if isinstance(body, dict) else []
    if not choices:
        raise Inconclusive("the answer has no choice; another check reports that")
    text = str(choices[0].get("text"))
    for one in UNKNOWN:
        text = text.replace(one, "🌊")
    if _kept(ECHOED) not in _kept(text):
        yield Problem(expected=as_json(ECHOED), actual=as_json(text)[:200], pointer="choices[0].text")


UNKNOWN = ("<unk>", "[UNK]", "\u2047")
"""What tokenizers without a fallback to bytes write for a character that they lack."""
_PLAIN = str.maketrans("“”’", '""\'')


def _kept(text: str) -> str:
    """Return a text without white space, case, accents and the form of quotes."""
    parts = unicodedata.normalize("NFKD", text.translate(_PLAIN)).casefold()
    return "".join(one for one in parts if not unicodedata.combining(one) and not one.isspace())


WORDS = (100, 200, 400, 800)
TURNS = (8, 16, 32)
SHARE = 0.9
"""What a prompt of twice the words has at least of twice the tokens."""


@scenario("chat/long-prompts", "Prompts of more and more words, and of more and more messages")
def long_prompts(target: Target) -> Steps:
    """Stay below the contexts of small models: a server that cuts prompts by itself often cuts at some hundred."""
    for count in WORDS:
        body = chat(target, messages=user("Count:" + " word" * count), max_tokens=1)
        yield Request(name=f"{count} words", path="/chat/completions", json=body)
    for count in TURNS:
        turns = [turn for _ in range(count) for turn in ({"role": "user", "content": "One more word."}, SAID)]
        body = chat(target, messages=[*turns, *user("And now?")], max_tokens=1)
        yield Request(name=f"{count} turns", path="/chat/completions", json=body)


SAID = {"role": "assistant", "content": "Here is one."}


@check("chat/long-prompts/whole", "Show the model the whole prompt, or refuse it", "ERR-09")
def long_prompts_whole(seen: Transcript) -> Iterator[Problem]:
    """Detect by the token counts that a server cuts a prompt and says nothing: each step adds as much as before."""
    for kind, counts in (("words", WORDS), ("turns", TURNS)):
        found = [usage_count(at(seen, f"{count} {kind}"), COUNTED) for count in counts]
        each = (found[1] - found[0]) / (counts[1] - counts[0])
        for place in range(2, len(counts)):
            wanted = found[place - 1] + SHARE * each * (counts[place] - counts[place - 1])
            if found[place] < wanted:
                name = f"{counts[place]} {kind}"
                shown = f"at least {wanted:.0f} tokens"
                yield Problem(
                    expected=shown, actual=str(found[place]), pointer=f"usage.{COUNTED}", exchange=name
                )
                break
