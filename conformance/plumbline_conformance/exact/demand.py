"""Derive the expected answer from a script and the markup that the server parses, and compare answers with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from plumbline_conformance.exact.answer import ReceivedAnswer, ReceivedCall, Surface
from plumbline_conformance.exact.scripts import Script, ScriptSet
from plumbline_conformance.suite.contract import rule_of_difference

__all__ = ["Miss", "Reads", "cut_short", "demanded", "misses", "stopped", "unlike"]

_LONGEST = 300


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """The markup that a server parses. Other markup is text and must arrive unchanged."""

    thinking: bool
    calls: bool
    from_within: bool = False
    """The server's parser starts every answer inside reasoning, so text without an end marker is all reasoning."""


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between an answer and the expected answer."""

    rule: str
    facet: str
    script: str
    surface: Surface
    how: str
    """`whole`, `streamed`, `stopped` or `cut`."""
    wanted: str
    got: str


def demanded(found: ScriptSet, script: Script, surface: Surface, reads: Reads) -> ReceivedAnswer | None:
    """Return the expected message, or None if major servers differ and nothing is expected."""
    if found.is_open(script):
        return None
    text = ReceivedAnswer(content=script.output, finish="stop")
    if surface != "completions" and reads.from_within and not (script.message and script.message.reasoning):
        return None
    if surface == "completions" or found.is_plain(script) or not (reads.thinking or reads.calls):
        return text
    message = script.message
    if message is None:
        return None
    # A server that parses only thinking or only calls is predictable if the message has only that part.
    parsed = {"thinking": reads.thinking, "calls": reads.calls}
    present = {"thinking": bool(message.reasoning), "calls": bool(message.tool_calls)}
    unread = [part for part, reads_it in parsed.items() if not reads_it]
    if any(present[part] for part in unread) or (unread and not any(present.values())):
        return None
    calls = tuple(ReceivedCall(call.name, _canonical(call.arguments)) for call in message.tool_calls)
    return ReceivedAnswer(
        reasoning=message.reasoning,
        content=message.content,
        calls=calls,
        finish="tool_calls" if calls else "stop",
    )


def stopped(wanted: ReceivedAnswer, stop: tuple[str, ...]) -> ReceivedAnswer:
    """End the text before the stop sequence that is complete first (CHAT-20).

    Example: with the stop sequences `abcd` and `bc` in `xabcd`, a server that streams must stop at `xabc`, before
    `abcd` is complete. If two end at the same character, the longer one counts, so that no part of a stop sequence
    is left.
    """
    places = [
        (place + len(text), place) for text in stop if text and (place := wanted.content.find(text)) >= 0
    ]
    return msgspec.structs.replace(wanted, content=wanted.content[: min(places)[1]]) if places else wanted


def misses(
    script: Script, surface: Surface, how: str, wanted: ReceivedAnswer, got: ReceivedAnswer, *, exact: bool
) -> Iterator[Miss]:
    """Yield the differences between an answer and the expected one.

    Args:
        script: the script.
        surface: the API.
        how: for the report; see `Miss.how`.
        wanted: the expected answer; the arguments of its calls are canonical JSON.
        got: the answer.
        exact: compare every character of the text. Next to markup, white space is ignored.
    """
    content = (wanted.content, got.content) if exact else (wanted.content.strip(), got.content.strip())
    facets: dict[str, tuple[Any, Any]] = {
        "content": content,
        "reasoning": (wanted.reasoning.strip(), got.reasoning.strip()),
        "calls": ([*map(_shown_call, wanted.calls)], [_shown_call(_read(call)) for call in got.calls]),
        "finish": (wanted.finish, got.finish),
    }
    for facet, (one, other) in facets.items():
        if one != other:
            special = _rule_of_text(script, surface, how, wanted, got) if facet == "content" else None
            rule = special or _rule_of(surface, facet, "CHAT-05")
            yield _miss(rule, facet, script, surface, how, one, other)


def _rule_of_text(
    script: Script, surface: Surface, how: str, wanted: ReceivedAnswer, got: ReceivedAnswer
) -> str | None:
    """Return the rule that a differing text breaks, by its content; None if the content does not show the cause."""
    if how == "stopped":
        if not any(text in got.content for text in script.stop):
            return "CHAT-20"
        return "CMP-09" if surface == "completions" else "CHAT-10"
    if got.calls and "<tool_call>" in got.content:
        return "TOOL-18"
    thought = wanted.reasoning.strip()
    return _rule_of(surface, "reasoning", "CS-17") if thought and thought in got.content else None


def cut_short(
    script: Script, surface: Surface, wanted: ReceivedAnswer | None, got: ReceivedAnswer, *, exact: bool
) -> Iterator[Miss]:
    """Yield the faults of a cut answer: it must end with `length` and be a prefix of the whole answer."""
    if got.finish != "length":
        rule = "R-05" if surface == "responses" else "CHAT-05" if surface == "chat" else "CMP-01"
        yield _miss(rule, "finish", script, surface, "cut", "length", got.finish)
    if wanted is None:
        return
    if not exact:
        wanted, got = _stripped(wanted), _stripped(got)
    for facet, one, other in (
        ("content", wanted.content, got.content),
        ("reasoning", wanted.reasoning, got.reasoning),
    ):
        if not one.startswith(other):
            yield _miss(_rule_of(surface, facet, "CS-17"), facet, script, surface, "cut", one, other)


def unlike(
    script: Script,
    surface: Surface,
    how: str,
    whole: ReceivedAnswer,
    streamed: ReceivedAnswer,
    *,
    exact: bool,
) -> Iterator[Miss]:
    """Yield the difference, if any, between a stream and the whole answer.

    Arguments are compared as JSON values, because a server may serialise them again in one of the two. Unless `exact`,
    white space at the ends of the text is ignored.
    """
    whole, streamed = _comparable(whole, exact=exact), _comparable(streamed, exact=exact)
    facets = [
        name for name in ReceivedAnswer.__struct_fields__ if getattr(whole, name) != getattr(streamed, name)
    ]
    if facets:
        one, other = (
            {name: _plain(getattr(answer, name)) for name in facets} for answer in (whole, streamed)
        )
        yield _miss(_rule_of(surface, "streamed", "CHAT-19"), "streamed", script, surface, how, one, other)


def _comparable(answer: ReceivedAnswer, *, exact: bool) -> ReceivedAnswer:
    """Return the answer with canonical arguments and, unless `exact`, with stripped texts."""
    answer = msgspec.structs.replace(answer, calls=tuple(map(_read, answer.calls)))
    return answer if exact else _stripped(answer)


def _stripped(answer: ReceivedAnswer) -> ReceivedAnswer:
    return msgspec.structs.replace(answer, content=answer.content.strip(), reasoning=answer.reasoning.strip())


def _rule_of(surface: Surface, facet: str, other: str) -> str:
    """Return the rule of a facet; the other one for a facet that the API does not have."""
    return rule_of_difference("exact", surface, facet) or other


def _miss(rule: str, facet: str, script: Script, surface: Surface, how: str, wanted: Any, got: Any) -> Miss:
    return Miss(
        rule=rule,
        facet=facet,
        script=script.title,
        surface=surface,
        how=how,
        wanted=_shown(wanted),
        got=_shown(got),
    )


def _read(call: ReceivedCall) -> ReceivedCall:
    """Return the call with its arguments as canonical JSON, if they are JSON."""
    try:
        return ReceivedCall(call.name, _canonical(json.loads(call.arguments)))
    except (ValueError, TypeError, RecursionError):
        return call


def _canonical(value: Any) -> str:
    return json.dumps(_counted(value), sort_keys=True, ensure_ascii=False)


def _counted(value: Any) -> Any:
    """Give equal numbers one spelling: in JSON 1.0 is 1, and 1e10 is 10000000000."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_counted(each) for each in value]
        case dict():
            return {key: _counted(each) for key, each in value.items()}
        case _:
            return value


def _shown_call(call: ReceivedCall) -> str:
    return f"{call.name}({call.arguments})"


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
