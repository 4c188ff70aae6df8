"""Compare the answers of a runner with the expected ones."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["NotCompared", "WrongAnswer", "check_allowed", "check_message", "check_prompt", "check_stream"]

_SHOWN = 300
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?')


class WrongAnswer(Exception):  # noqa: N818 - the name describes the answer
    """The answer differs from the expected one; the message says how."""


class NotCompared(Exception):  # noqa: N818 - the name describes the answer
    """The runner does not answer such questions."""


def check_message(expected: dict[str, Any], markers: Sequence[str], answer: dict[str, Any]) -> None:
    """Compare a parsed message: texts without regard to some white space, arguments as JSON values.

    White space at the ends of a text and beside a marker counts as none, and elsewhere as one space.

    Raises:
        WrongAnswer: a text, the number of calls, a name or the arguments of a call differ.
    """
    message = answer.get("message")
    if not isinstance(message, dict):
        raise WrongAnswer("the answer has no message")
    for key in ("reasoning", "content"):
        _same(key, _plain(expected[key], markers), _plain(str(message.get(key) or ""), markers))
    calls = message.get("calls") or []
    names = [call["name"] for call in expected["calls"]]
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise WrongAnswer("calls is not a list of objects")
    _same("names of calls", names, [call.get("name") for call in calls])
    for number, (call, found) in enumerate(zip(expected["calls"], calls, strict=True)):
        arguments = found.get("arguments")
        if not isinstance(arguments, str):
            raise WrongAnswer(f"arguments of call {number} is not a string")
        complete = call.get("complete", True)
        normal = _value if complete else _without_gaps
        _same(f"arguments of call {number}", normal(call["arguments"]), normal(arguments))


def check_prompt(case: dict[str, Any], answer: dict[str, Any]) -> None:
    """Compare a rendered prompt.

    Raises:
        WrongAnswer: it differs.
    """
    _same("prompt", case["prompt"], answer.get("prompt"))


def check_stream(case: dict[str, Any], answer: dict[str, Any]) -> None:
    """Compare the fold of a stream, or whether it is recognised as broken by one of the rules that it breaks.

    Raises:
        WrongAnswer: the fold differs, or a broken stream is taken for a correct one, or the reverse.
        NotCompared: the stream is broken, and the runner only folds.
    """
    if "broken" not in case:
        if answer.get("broken"):
            raise WrongAnswer(f"a correct stream is said to break {answer['broken']}")
        for key, value in case["folded"].items():
            _same(key, value, answer.get("folded", {}).get(key))
        return
    if "broken" not in answer:
        raise NotCompared("the runner does not judge streams")
    if not answer["broken"]:
        raise WrongAnswer(
            f"expected a stream that breaks {' or '.join(case['broken'])}, found no fault in it"
        )


def check_allowed(case: dict[str, Any], answer: dict[str, Any]) -> None:
    """Compare whether a constraint allows a text.

    Raises:
        WrongAnswer: it is allowed and should be refused, or the reverse.
    """
    _same("allowed", case["allowed"], answer.get("allowed"))


def _same(what: str, expected: object, found: object) -> None:
    if expected != found:
        raise WrongAnswer(f"{what}: expected {_shown(expected)}, found {_shown(found)}")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _plain(text: str, markers: Sequence[str]) -> str:
    for marker in markers:
        if marker in text:
            text = re.sub(rf"\s*{re.escape(marker)}\s*", lambda found: found.group().strip(), text)
    return " ".join(text.split())


def _value(arguments: str) -> str:
    """Return a JSON value in one form, in which 1, 1.0 and true differ."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, sort_keys=True)
    except (ValueError, RecursionError):
        return f"not JSON: {arguments}"


def _without_gaps(arguments: str) -> str:
    """Return the beginning of a JSON text without white space outside its strings."""
    parts: list[str] = []
    end = 0
    for string in _STRING.finditer(arguments):
        parts += ["".join(arguments[end : string.start()].split()), string.group()]
        end = string.end()
    return "".join([*parts, "".join(arguments[end:].split())])
