"""What a script demands of a server, given what the server reads of the script's markup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from plumbline_conformance.exact.answer import Answer, Call, Surface
from plumbline_conformance.exact.scripts import Script, ScriptSet

__all__ = ["Miss", "Reads", "cut_short", "demanded", "misses", "stopped", "unlike"]

_RULES: dict[Surface, dict[str, str]] = {
    "chat": {
        "content": "CHAT-11",
        "reasoning": "CS-17",
        "calls": "TOOL-01",
        "finish": "CHAT-05",
        "streamed": "CHAT-19",
    },
    "completions": {"content": "CMP-10", "finish": "CMP-01", "streamed": "CMP-08"},
    "responses": {
        "content": "R-09",
        "reasoning": "ST-19",
        "calls": "TOOL-01",
        "finish": "R-02",
        "streamed": "RS-16",
    },
}
_LONGEST = 300


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """What a server reads of the markup. What it does not read is text to it, and has to arrive as such."""

    thinking: bool
    calls: bool
    from_within: bool = False
    """It takes every answer to begin inside of a thought, so that text without an end of a thought is one."""


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """Where an answer is not what it has to be."""

    rule: str
    facet: str
    script: str
    surface: Surface
    how: str
    """`whole`, `streamed`, or what cut it."""
    wanted: str
    got: str


def demanded(found: ScriptSet, script: Script, surface: Surface, reads: Reads) -> Answer | None:
    """The message that the answer has to be; None where servers of good repute may differ."""
    if found.is_open(script):
        return None
    text = Answer(content=script.output, finish="stop")
    if surface != "completions" and reads.from_within and not (script.message and script.message.reasoning):
        return None
    if surface == "completions" or found.is_plain(script) or not (reads.thinking or reads.calls):
        return text
    message = script.message
    if message is None:
        return None
    # Of markup that is read in part nothing is known but where the other part has none.
    only_thinks = bool(message.reasoning) and not message.tool_calls
    only_calls = bool(message.tool_calls) and not message.reasoning
    if not (
        (reads.thinking and reads.calls) or (only_thinks and reads.thinking) or (only_calls and reads.calls)
    ):
        return None
    calls = tuple(Call(call.name, _canonical(call.arguments)) for call in message.tool_calls)
    return Answer(
        reasoning=message.reasoning,
        content=message.content,
        calls=calls,
        finish="tool_calls" if calls else "stop",
    )


def stopped(wanted: Answer, stop: tuple[str, ...]) -> Answer:
    """The same text, ended before the stop sequence that is the first to be complete (CHAT-20).

    One that begins earlier but ends later was not there yet when a server that reads along had to stop. Of two that
    end at once the longer one counts, so that nothing of a stop sequence is left.
    """
    places = [
        (place + len(text), place) for text in stop if text and (place := wanted.content.find(text)) >= 0
    ]
    return msgspec.structs.replace(wanted, content=wanted.content[: min(places)[1]]) if places else wanted


def misses(
    script: Script, surface: Surface, how: str, wanted: Answer, got: Answer, *, exact: bool
) -> Iterator[Miss]:
    """Where an answer is not the demanded one.

    Args:
        script: the script.
        surface: the API.
        how: for the report.
        wanted: what is demanded; the arguments of its calls are canonical JSON.
        got: what came.
        exact: every character of the text counts; beside markup, white space at its ends belongs to nobody.
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
            rule = _RULES[surface].get(facet, "CHAT-05")
            thought = wanted.reasoning.strip()
            if facet == "content" and thought and thought in got.content:
                rule = _RULES[surface]["reasoning"]
            if facet == "content" and got.calls and "<tool_call>" in got.content:
                rule = "TOOL-18"
            if how == "stopped" and facet == "content":
                left = any(text in got.content for text in script.stop)
                rule = "CHAT-20" if not left else "CMP-09" if surface == "completions" else "CHAT-10"
            yield _miss(rule, facet, script, surface, how, one, other)


def cut_short(
    script: Script, surface: Surface, wanted: Answer | None, got: Answer, *, exact: bool
) -> Iterator[Miss]:
    """What is wrong with an answer that the token limit has cut: it says so, and is a beginning of the whole."""
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
            yield _miss(_RULES[surface].get(facet, "CS-17"), facet, script, surface, "cut", one, other)


def unlike(
    script: Script, surface: Surface, how: str, whole: Answer, streamed: Answer, *, exact: bool
) -> Iterator[Miss]:
    """Where a stream says something else than the answer in one piece.

    Arguments are compared by what they say, since a server may write the JSON anew in one of the two. Where the text
    is not demanded to the character, white space at its ends belongs to nobody here either.
    """
    whole, streamed = _comparable(whole, exact=exact), _comparable(streamed, exact=exact)
    facets = [name for name in Answer.__struct_fields__ if getattr(whole, name) != getattr(streamed, name)]
    if facets:
        one, other = (
            {name: _plain(getattr(answer, name)) for name in facets} for answer in (whole, streamed)
        )
        yield _miss(_RULES[surface]["streamed"], "streamed", script, surface, how, one, other)


def _comparable(answer: Answer, *, exact: bool) -> Answer:
    """With canonical arguments, and without what does not count."""
    answer = msgspec.structs.replace(answer, calls=tuple(map(_read, answer.calls)))
    return answer if exact else _stripped(answer)


def _stripped(answer: Answer) -> Answer:
    return msgspec.structs.replace(answer, content=answer.content.strip(), reasoning=answer.reasoning.strip())


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


def _read(call: Call) -> Call:
    """With its arguments as canonical JSON, if they are JSON at all."""
    try:
        return Call(call.name, _canonical(json.loads(call.arguments)))
    except (ValueError, TypeError, RecursionError):
        return call


def _canonical(value: Any) -> str:
    return json.dumps(_counted(value), sort_keys=True, ensure_ascii=False)


def _counted(value: Any) -> Any:
    """With one spelling of every number: JSON has a single kind of them, so that 1.0 is 1 and 1e10 is 10000000000."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_counted(each) for each in value]
        case dict():
            return {key: _counted(each) for key, each in value.items()}
        case _:
            return value


def _shown_call(call: Call) -> str:
    return f"{call.name}({call.arguments})"


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
