"""A path that nobody serves is answered with what it was probably meant to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.contract.wire.names.unknown_paths import advice


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/chat/completions", "Did you mean /v1/chat/completions?"),
        ("/responses/resp_1", "Did you mean /v1/responses/resp_1?"),
        ("/v1/v1/chat/completions", "/v1 is here twice"),
        ("/v1/embeddings", "Embeddings are not served"),
        ("/v1/audio/transcriptions", "Audio is not served"),
        ("/api/chat", "use /v1/chat/completions"),
        ("/v1/messages/batches/x/results", "Batches of messages are not served"),
    ],
)
def test_a_near_path_is_named(path: str, words: str) -> None:
    assert words in advice(path)


@given(st.text("/v1chatmodels", max_size=20))
def test_advice_is_one_sentence_or_nothing(path: str) -> None:
    found = advice(f"/{path}")
    assert found == "" or (found.startswith(" ") and found.endswith("."))
    assert advice(f"/elsewhere/{path}") == ""
