"""The search over a vocabulary finds what looking into each token finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.text.token_search import TokenSearch

texts = st.text("abé", max_size=5)


@given(st.lists(texts, max_size=12), st.sets(st.integers(0, 11)), texts.filter(bool))
def test_the_tokens_that_contain_a_text(tokens: list[str], hidden: set[int], text: str) -> None:
    found = TokenSearch([token.encode() for token in tokens], hidden).containing(text)
    assert found == {i for i, token in enumerate(tokens) if text in token and i not in hidden}
