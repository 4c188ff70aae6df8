"""Text, stop strings and logprobs in step with each other (LP-03, LP-07)."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support.models import TOKENIZER
from support.strategies import cuts, texts

from plumbline.answer.events import Logprob, TextDelta
from plumbline.answer.text.assemble import TextAssembler
from plumbline.answer.text.stop import StopChecker
from plumbline.port.engine import TokenLogprob

# Mostly tokens that make text, some that are bytes of no character, some that are control tokens.
answers = st.lists(
    st.one_of(
        st.sampled_from(range(TOKENIZER.vocab_size)),
        st.sampled_from([ord("a"), ord("b")]).map(lambda b: TOKENIZER.encode_text(chr(b))[0]),
    ),
    max_size=16,
)
stops = st.lists(st.sampled_from(["a", "ab", "ba", "bb", "€", "lo", "\ufffd", "a\ufffd"]), max_size=3).map(
    tuple
)


def assemble(pieces: list[list[int]], **options: Any) -> tuple[list[TextDelta], TextAssembler]:
    assembler = TextAssembler(TOKENIZER, logprobs=True, **options)
    deltas = [
        assembler.push(piece, [TokenLogprob(i, -0.5, ((i, -0.5), (0, -1.0))) for i in piece])
        for piece in pieces
    ]
    return [delta for delta in [*deltas, assembler.finish()] if delta is not None], assembler


def joined(entries: list[Logprob]) -> bytes:
    return b"".join(entry.raw for entry in entries)


@given(answers, stops, st.booleans(), st.booleans(), st.data())
def test_any_chunking_gives_the_text_that_the_whole_gives(
    ids: list[int], stop: tuple[str, ...], include: bool, skip: bool, data: st.DataObject
) -> None:
    """CHAT-19: the text does not depend on how the engine groups tokens."""
    deltas, assembler = assemble(
        data.draw(cuts(ids)), stop=stop, include_stop=include, skip_special_tokens=skip
    )
    hidden = TOKENIZER.special_ids if skip else frozenset()
    checker = StopChecker(stop, include=include)
    whole = checker.push(TOKENIZER.decode([i for i in ids if i not in hidden]))
    whole += checker.flush() if checker.matched is None else ""

    assert whole == "".join(delta.text for delta in deltas)
    assert checker.matched == assembler.stop_match


@given(answers, stops, st.booleans(), st.data())
@example([TOKENIZER.encode_text("a")[0]] * 3, ("a",), False, None)
@example([0xC2, *TOKENIZER.encode_text("a")], ("a",), False, None)
def test_logprob_bytes_are_a_prefix_of_the_text_at_every_moment_and_equal_at_the_end(
    ids: list[int], stop: tuple[str, ...], include: bool, data: st.DataObject | None
) -> None:
    """LP-03, LP-07: concatenated `bytes` equal the content bytes, also when a stop string ends inside a token."""
    pieces = [ids] if data is None else data.draw(cuts(ids))
    deltas, _ = assemble(pieces, stop=stop, include_stop=include)
    text = ""
    entries: list[Any] = []
    for delta in deltas:
        text += delta.text
        entries += delta.logprobs
        # A character whose last byte is still owed does not count yet, and neither do the bytes of an invalid one.
        known = "".join(entry.text for entry in entries)
        assert text.startswith(known)
        if "\ufffd" not in text:
            assert text.encode().startswith(joined(entries))

    assert joined(entries).decode("utf-8", "replace") == text
    assert "".join(entry.text for entry in entries) == text
    if "\ufffd" not in text:
        assert joined(entries) == text.encode()


@given(answers)
def test_every_token_with_text_has_one_entry(ids: list[int]) -> None:
    """LP-03: the entry count equals the completion tokens without control tokens."""
    deltas, assembler = assemble([ids])
    entries = [entry for delta in deltas for entry in delta.logprobs]

    assert [i for i in ids if i not in TOKENIZER.special_ids] == [entry.token_id for entry in entries]
    assert assembler.num_tokens == len(ids)
    assert all(entry.raw == TOKENIZER.table[entry.token_id] for entry in entries)


@given(answers, stops, st.booleans(), st.booleans(), st.booleans(), st.data())
def test_a_completion_has_an_entry_for_every_token(
    ids: list[int], stop: tuple[str, ...], include: bool, skip: bool, ends: bool, data: st.DataObject
) -> None:
    """CMP-04: as many as the usage counts: control tokens, the end, parts of characters, what a stop string took."""
    assembler = TextAssembler(
        TOKENIZER, stop=stop, include_stop=include, skip_special_tokens=skip, logprobs=True, every_token=True
    )
    pieces = data.draw(cuts(ids))
    deltas = [
        assembler.push(
            piece,
            [TokenLogprob(i, -float(i)) for i in piece],
            ends_with_stop_token=ends and bool(piece) and index == len(pieces) - 1,
        )
        for index, piece in enumerate(pieces)
    ]
    found = [delta for delta in [*deltas, assembler.finish()] if delta is not None]
    entries = [entry for delta in found for entry in delta.logprobs]

    assert [entry.token_id for entry in entries] == ids[: assembler.num_tokens]
    assert [entry.logprob for entry in entries] == [-float(i) for i in ids[: assembler.num_tokens]]
    assert "".join(entry.text for entry in entries) == "".join(delta.text for delta in found)


@given(texts, st.data())
def test_deltas_are_never_empty(text: str, data: st.DataObject) -> None:
    """CS-05, RS-18."""
    deltas, _ = assemble(data.draw(cuts(TOKENIZER.encode_text(text))), stop=("hello world",))

    assert all(delta.text for delta in deltas)


def test_an_entry_waits_for_its_text() -> None:
    """LP-07: no entry is sent before its text, even if an invalid byte has made the text longer."""
    assembler = TextAssembler(TOKENIZER, stop=("ab!",), logprobs=True)
    broken, a, b, bang = 0xFF, *TOKENIZER.encode_text("ab!")
    table_ids = [TOKENIZER.table.index(b"\xff"), a, b, bang]
    assert broken == TOKENIZER.table[table_ids[0]][0]
    sent = [assembler.push([i], [TokenLogprob(i, -1.0)]) for i in table_ids]

    assert [None if delta is None else (delta.text, len(delta.logprobs)) for delta in sent] == [
        ("\ufffd", 1), None, None, None,
    ]  # fmt: skip
    assert assembler.stop_match == "ab!"


def test_a_token_that_the_stop_string_cuts_keeps_the_bytes_that_were_sent() -> None:
    hello = TOKENIZER.encode_text("hello")
    assert len(hello) == 1
    deltas, assembler = assemble([hello], stop=("ll",))

    assert [(d.text, d.logprobs[0].raw, d.logprobs[0].token) for d in deltas] == [("he", b"he", "he")]
    assert assembler.num_tokens == 1


def test_tokens_after_the_stop_string_are_not_counted() -> None:
    _, assembler = assemble([TOKENIZER.encode_text("a b c")], stop=("b",))

    assert assembler.num_tokens == len(TOKENIZER.encode_text("a b"))


def test_the_end_of_sequence_is_hidden_even_where_control_tokens_are_shown() -> None:
    end, start = TOKENIZER.added["<|im_end|>"], TOKENIZER.added["<|im_start|>"]
    deltas, _ = assemble([[start, end]], skip_special_tokens=False, hidden_ids=frozenset({end}))

    assert "".join(delta.text for delta in deltas) == "<|im_start|>"
