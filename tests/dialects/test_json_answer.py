"""Answers that are one JSON object each."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from support.parsing.dialects import Dialect, cut, fold
from support.parsing.plans import sizes

from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.events import TextDelta

_DIALECT = Dialect(TOOL_DIALECTS["generic_json"], None)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\{}\n é🎉'))
_OBJECTS = st.dictionaries(_TEXTS, st.integers() | _TEXTS | st.booleans() | st.none(), min_size=1)


def _read(text: str, lengths: list[int]) -> str:
    parser = _DIALECT.parser()
    events = [event for piece in cut(text, lengths) for event in parser.push(TextDelta(piece))]
    folded = fold([*events, *parser.finish("stop")])
    assert not folded.calls
    return folded.content


@given(text=_TEXTS, ascii_only=st.booleans(), indent=st.sampled_from([None, 1, 4]), lengths=sizes)
def test_a_response_is_its_string(
    text: str, ascii_only: bool, indent: int | None, lengths: list[int]
) -> None:
    written = json.dumps({"response": text}, ensure_ascii=ascii_only, indent=indent)
    assert _read(written, lengths) == text


@given(value=_OBJECTS, indent=st.sampled_from([None, 1, 4]), lengths=sizes)
def test_a_response_of_another_type_is_its_json(
    value: dict[str, object], indent: int | None, lengths: list[int]
) -> None:
    written = json.dumps({"response": value}, indent=indent)
    assert json.loads(_read(written, lengths)) == value


@given(value=_OBJECTS, lengths=sizes)
def test_an_object_with_another_key_is_text(value: dict[str, object], lengths: list[int]) -> None:
    written = json.dumps({"first": value, **value})
    assert _read(written, lengths) == written
