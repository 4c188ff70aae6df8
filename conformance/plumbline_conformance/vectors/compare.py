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
    """Compare a parsed message: texts up to white space, arguments as JSON values.

    White space is ignored at the ends of a text and next to a marker. Anywhere else a run of it counts as one space.

    Raises:
        WrongAnswer: a text, the number of calls, a name or the arguments of a call differ.
    """
    message = answer.get("message")
    if not isinstance(message, dict):
        raise WrongAnswer("the answer has no message")
    for key in ("reasoning", "content"):
        _check_equal(
            key,
            _without_layout(expected[key], markers),
            _without_layout(str(message.get(key) or ""), markers),
        )
    calls = message.get("calls") or []
    names = [call["name"] for call in expected["calls"]]
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise WrongAnswer("calls is not a list of objects")
    _check_equal("names of calls", names, [call.get("name") for call in calls])
    for number, (call, parsed) in enumerate(zip(expected["calls"], calls, strict=True)):
        arguments = parsed.get("arguments")
        if not isinstance(arguments, str):
            raise WrongAnswer(f"arguments of call {number} is not a string")
        complete = call.get("complete", True)
        normalise = _canonical_json if complete else _without_white_space
        _check_equal(f"arguments of call {number}", normalise(call["arguments"]), normalise(arguments))


def check_prompt(case: dict[str, Any], answer: dict[str, Any]) -> None:
    """Compare a rendered prompt.

    Raises:
        WrongAnswer: it differs.
    """
    _check_equal("prompt", case["prompt"], answer.get("prompt"))


def check_stream(case: dict[str, Any], answer: dict[str, Any]) -> None:
    """Compare the fold of a correct stream; a broken stream must be recognised as broken.

    The runner may name any rule: one fault, such as a cut stream, can be reported under several.

    Raises:
        WrongAnswer: the fold differs, a broken stream is accepted, or a correct one is refused.
        NotCompared: the stream is broken, and the runner only folds.
    """
    if "broken" not in case:
        if answer.get("broken"):
            raise WrongAnswer(f"a correct stream is said to break {answer['broken']}")
        for key, value in case["folded"].items():
            _check_equal(key, value, answer.get("folded", {}).get(key))
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
    _check_equal("allowed", case["allowed"], answer.get("allowed"))


def _check_equal(what: str, expected: object, found: object) -> None:
    if expected != found:
        raise WrongAnswer(f"{what}: expected {_shown(expected)}, found {_shown(found)}")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _without_layout(text: str, markers: Sequence[str]) -> str:
    """Return a text without the white space that `check_message` ignores."""
    for marker in markers:
        if marker in text:
            text = re.sub(rf"\s*{re.escape(marker)}\s*", lambda found: found.group().strip(), text)
    return " ".join(text.split())


def _canonical_json(arguments: str) -> str:
    """Return a JSON value in one form, in which 1, 1.0 and true differ."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, sort_keys=True)
    except (ValueError, RecursionError):
        return f"not JSON: {arguments}"


def _without_white_space(arguments: str) -> str:
    """Return the beginning of a JSON text without white space outside its strings."""
    parts: list[str] = []
    end = 0
    for string in _STRING.finditer(arguments):
        parts += ["".join(arguments[end : string.start()].split()), string.group()]
        end = string.end()
    return "".join([*parts, "".join(arguments[end:].split())])
