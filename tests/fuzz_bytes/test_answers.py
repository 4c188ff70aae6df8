"""Law of answers in which a model, or a message to continue, repeats itself: they are read at a linear cost.

Every dialect reads the beginning of a call, cut anywhere, and then the same few of its markers, quotes and words again
and again. A reader that looks at all that is left for each of them takes minutes for what one request has.
"""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import strategies as st
from support.parsing.defects import TOOLS
from support.parsing.dialects import kept_dialect

from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Section
from plumbline.answer.events import TextDelta

from .damage import explore

_SIZE = 48_000
_MOST_SECONDS = 3.0
"""Of CPU time, for `_SIZE` characters; the slowest take 0.3."""
_SECTIONS = [
    (name, section)
    for name, tool in TOOL_DIALECTS.items()
    if not tool.messages and name == tool.name
    for section in tool.sections
]
_CALL = WrittenCall("get", json.dumps({"city": "Paris", "days": 3, "tags": ["a"], "x": {"y": "z"}}))
_PIECES = re.compile(r"<[^<>]{1,60}>|<?[|\uff5c][^|\uff5c]*[|\uff5c]>?|\[[A-Z_]+\]|\w+|\s+|[^\w\s]")
_OTHERS = ["`", "```", "\n", '"', "'", "<", "\\", "{", "}", "[", ",", "=", "get", "<tool_call>", "</think>"]


@st.composite
def _answers(draw: st.DrawFn) -> bytes:
    name, section = draw(st.sampled_from(_SECTIONS))
    return json.dumps([name, *draw(_beginnings(section))]).encode()


@st.composite
def _beginnings(draw: st.DrawFn, section: Section) -> tuple[str, str]:
    """A beginning of a call, and what comes again and again after it."""
    call = render_calls([_CALL], section)
    pieces = st.sampled_from([*_PIECES.findall(call), *_OTHERS])
    unit = "".join(draw(st.lists(pieces, min_size=1, max_size=draw(st.sampled_from([1, 1, 2, 4])))))
    # Most often in the middle of a string, where most is allowed to follow.
    ends = st.sampled_from([call.index("Par") + 2, call.index("get") + 2]) | st.integers(0, len(call))
    return call[: draw(ends)], unit


def _read(data: bytes) -> None:
    name, begun, unit = json.loads(data)
    text = begun + unit * (_SIZE // len(unit))
    parser = kept_dialect(TOOL_DIALECTS[name]).parser(tools=TOOLS)
    began = time.process_time()
    parser.push(TextDelta(text))
    parser.finish("stop")
    assert time.process_time() - began < _MOST_SECONDS


@pytest.mark.sampled
def test_answers() -> None:
    explore("answers", _answers(), _read)
