"""Law of looking at JSON without making its values: the answer is that of `json.loads`."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from plumbline.base.json_text import is_object

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.floats(),
        st.integers(-(10**30), 10**30),
        st.text(),
        st.text(st.characters(categories=["Cs"]), max_size=3),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def loaded(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@given(VALUES, st.booleans(), st.sampled_from(["", " ", "\n\t", "\ufeff", "\u00a0", "x"]), st.integers(0, 60))
@example({"a": 1e400}, False, "", 60)
@example({"a": "\ud800"}, False, "", 60)
def test_a_text_is_an_object_if_json_reads_one(
    value: object, ascii_only: bool, around: str, size: int
) -> None:
    whole = json.dumps(value, ensure_ascii=ascii_only)
    for text in (
        around + whole,
        whole + around,
        whole[:size],
        whole.replace('"', "'"),
        f"{{{whole}",
        f'{{"a":{whole}}}',
    ):
        assert is_object(text) == loaded(text), text


def test_a_text_of_any_depth_has_an_answer() -> None:
    for depth in (10, 900, 100_000):
        deep = '{"a":' * depth + "1" + "}" * depth
        assert is_object(deep) == loaded(deep)
