"""Sealed reasoning: opens with its own secret only, and not when it was changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.server.protocols.common.sealing import MAX_SEALED, Sealer, UnsealError

SEALER = Sealer("a secret of the server")


@given(st.text(st.characters(codec=None)))
def test_what_was_sealed_opens_to_the_same_text(text: str) -> None:
    assert Sealer("a secret of the server").open(SEALER.seal(text)) == text


@given(st.text(), st.data())
def test_a_change_of_any_character_is_found(text: str, data: st.DataObject) -> None:
    sealed = SEALER.seal(text)
    place = data.draw(st.integers(0, len(sealed) - 2))  # The last character has bits that base64 ignores.
    other = data.draw(st.sampled_from("Aa0-_.é").filter(lambda char: char != sealed[place]))
    with pytest.raises(UnsealError):
        SEALER.open(sealed[:place] + other + sealed[place + 1 :])


@given(st.text())
def test_foreign_texts_are_refused(text: str) -> None:
    for foreign in (text, "pl1." + text, Sealer().seal(text)):
        with pytest.raises(UnsealError):
            SEALER.open(foreign)


def test_two_seals_of_a_text_differ() -> None:
    assert SEALER.seal("same") != SEALER.seal("same")


def test_the_size_is_bounded() -> None:
    with pytest.raises(UnsealError, match="longer"):
        SEALER.open("pl1." + "A" * MAX_SEALED)


@given(st.text(), st.sampled_from(["", "a", "b"]), st.sampled_from(["", "a", "b"]))
def test_a_text_opens_for_the_client_that_it_was_sealed_for_only(text: str, client: str, other: str) -> None:
    sealed = SEALER.of(client).seal(text)
    if client == other:
        assert SEALER.of(other).open(sealed) == text
    else:
        with pytest.raises(UnsealError):
            SEALER.of(other).open(sealed)
