"""Define the model outputs whose parsing is benchmarked."""

from __future__ import annotations

import json
from typing import Any

from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance

__all__ = ["PROSE", "TOOLS", "call", "small_calls"]

PROSE = 'Word after word, a line\n and a "quote" now and then, <b> and 1 < 2. '
TOOLS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"text": {"type": "string"}, "list": {"type": "array"}}}
}


def call(times: int) -> Utterance:
    """Return a call with a long string."""
    return Utterance((WrittenCall("f", json.dumps({"text": PROSE * times})),))


def small_calls(count: int) -> Utterance:
    """Return many calls with short arguments."""
    return Utterance(tuple(WrittenCall("f", json.dumps({"text": f"word {n}"})) for n in range(count)))
