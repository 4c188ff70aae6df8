"""The laws of detokenising, stop strings and logprobs for every kind of tokenizer (SSE-09, CHAT-10, LP-03)."""

from __future__ import annotations

import codecs

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import cuts
from support.weights.tokenizers import KINDS, reference, tokenizer

from plumbline.answer.events import Logprob, TextDelta
from plumbline.answer.text.assemble import TextAssembler
from plumbline.answer.text.stop import StopChecker
from plumbline.port.engine import TokenLogprob

every_kind = pytest.mark.parametrize("kind", KINDS)

texts = st.lists(
    st.sampled_from(["hello", " world", " the", "stop", " ", "a", "b", "€", "🎉", "é", "\n", "x", "</s"]), max_size=10
).map("".join)  # fmt: skip
stops = st.lists(
    st.sampled_from(["o w", "ab", "abx", "stop", "b", "€", "\U0001f389", "x\n", " the"]), max_size=3
).map(tuple)


@every_kind
@given(text=texts)
def test_text_is_what_the_library_decodes(kind: str, text: str) -> None:
    """Two ways to the same text: the bytes of every token in turn, and the library's decoder over all of them."""
    ids = reference(kind).encode(text, add_special_tokens=False).ids
    ours = tokenizer(kind)

    assert ours.encode_text(text) == ids
    assert ours.decode(ids) == reference(kind).decode(ids, skip_special_tokens=False)


@st.composite
def token_runs(draw: st.DrawFn, kind: str) -> list[int]:
    """Mostly tokens of text, cut anywhere; sometimes any token at all."""
    ids = tokenizer(kind).encode_text(draw(texts))
    anything = draw(st.lists(st.integers(0, tokenizer(kind).vocab_size - 1), max_size=3))
    place = draw(st.integers(0, len(ids)))
    return [*ids[:place], *anything, *ids[place:]]


def assembled(
    kind: str, pieces: list[list[int]], *, logprobs: bool, **options: object
) -> tuple[list[TextDelta], TextAssembler]:
    found = TextAssembler(tokenizer(kind), logprobs=logprobs, **options)  # type: ignore[arg-type]
    deltas = [
        found.push(piece, [TokenLogprob(i, -0.5, ((i, -0.5),)) for i in piece] if logprobs else None)
        for piece in pieces
    ]
    return [delta for delta in [*deltas, found.finish()] if delta is not None], found


def oracle(
    kind: str, ids: list[int], stop: tuple[str, ...], include: bool, min_tokens: int
) -> tuple[str, str | None]:
    """Read the whole answer at once, character by character, knowing which token completed each."""
    ours = tokenizer(kind)
    raws = [b"" if i in ours.special_ids else ours.table[i] for i in ids]
    whole = b"".join(raws).decode("utf-8", "replace")
    # Characters that the first `min_tokens` tokens complete; one that is still open then belongs to a later token.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    free = len(decoder.decode(b"".join(raws[:min_tokens])))
    for end in range(free + 1, len(whole) + 1):
        if len(ids) <= min_tokens:
            break
        ending = [s for s in stop if whole[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return whole[: end if include else end - len(longest)], longest
    return whole, None


@every_kind
@given(
    data=st.data(), stop=stops, include=st.booleans(), min_tokens=st.integers(0, 8), logprobs=st.booleans()
)
def test_any_cutting_gives_the_text_up_to_the_first_stop_string(
    kind: str, data: st.DataObject, stop: tuple[str, ...], include: bool, min_tokens: int, logprobs: bool
) -> None:
    """CHAT-10: the result is the same with and without logprobs, and `min_tokens` applies to stop strings too."""
    ids = data.draw(token_runs(kind))
    deltas, found = assembled(
        kind, data.draw(cuts(ids)), stop=stop, include_stop=include, min_tokens=min_tokens, logprobs=logprobs
    )

    assert ("".join(delta.text for delta in deltas), found.stop_match) == oracle(
        kind, ids, stop, include, min_tokens
    )
    if found.stop_match is not None:
        assert found.num_tokens > min_tokens


@every_kind
@given(data=st.data(), stop=stops, include=st.booleans())
def test_logprob_bytes_and_tokens_concatenate_to_the_text(
    kind: str, data: st.DataObject, stop: tuple[str, ...], include: bool
) -> None:
    """LP-03, for byte-level vocabularies and for SentencePiece ones with their byte tokens."""
    ids = data.draw(token_runs(kind))
    deltas, _ = assembled(kind, data.draw(cuts(ids)), stop=stop, include_stop=include, logprobs=True)
    text = "".join(delta.text for delta in deltas)
    entries = [entry for delta in deltas for entry in delta.logprobs]

    assert "".join(entry.text for entry in entries) == text
    assert b"".join(entry.raw for entry in entries).decode("utf-8", "replace") == text
    for entry in entries:
        assert "\u2581" not in entry.token
        assert "\u0120" not in entry.token
        assert "<0x" not in entry.token


@every_kind
@given(data=st.data(), stop=stops)
def test_no_part_of_a_stop_string_is_ever_sent(kind: str, data: st.DataObject, stop: tuple[str, ...]) -> None:
    """CS-15: what was sent after every token is a prefix of the answer, whatever comes later."""
    ids = data.draw(token_runs(kind))
    answer = oracle(kind, ids, stop, False, 0)[0]
    found = TextAssembler(tokenizer(kind), stop=stop)
    sent = ""
    for token_id in ids:
        delta = found.push([token_id])
        sent += delta.text if delta is not None else ""
        assert answer.startswith(sent)


@every_kind
@given(data=st.data(), include=st.booleans(), logprobs=st.booleans())
def test_a_stop_token_counts_but_is_text_only_on_request(
    kind: str, data: st.DataObject, include: bool, logprobs: bool
) -> None:
    """CHAT-10 for tokens: the token that ended the answer is treated as a stop string would be."""
    ids = data.draw(token_runs(kind).filter(bool))
    found = TextAssembler(tokenizer(kind), include_stop=include, logprobs=logprobs)
    entries = [TokenLogprob(i, -0.5) for i in ids] if logprobs else None
    delta = found.push(ids, entries, ends_with_stop_token=True)
    rest = found.finish()
    shown = ids if include else ids[:-1]
    plain, _ = assembled(kind, [shown], logprobs=logprobs)

    assert [d for d in (delta, rest) if d is not None] == [
        d if not logprobs else TextDelta(d.text, tuple(_bare(e) for e in d.logprobs)) for d in plain
    ]
    assert found.num_tokens == len(ids)


def _bare(entry: Logprob) -> Logprob:
    return msgspec.structs.replace(entry, top=())


@every_kind
@given(data=st.data())
def test_special_tokens_are_left_out_or_shown_as_they_are(kind: str, data: st.DataObject) -> None:
    """No space is inserted between them, even if the tokenizer's decoder would insert one."""
    ours = tokenizer(kind)
    bos = ours.added["<s>"]
    ids = [bos, *ours.encode_text("ab"), bos, bos]
    pieces = data.draw(cuts(ids))
    hidden, _ = assembled(kind, pieces, logprobs=False)
    shown, _ = assembled(kind, pieces, logprobs=False, skip_special_tokens=False)
    text = b"".join(ours.table[i] for i in ids if i != bos).decode()

    assert "".join(delta.text for delta in hidden) == text
    assert "".join(delta.text for delta in shown) == f"<s>{text}<s><s>"


def test_a_stop_string_may_begin_in_the_tokens_of_min_tokens_and_end_behind_them() -> None:
    checker = StopChecker(("ab", "bc"))

    assert checker.push("ab", armed=False) == "a"
    assert checker.push("c") == ""
    assert checker.matched == "bc"


def test_a_stop_string_that_is_complete_too_early_is_text() -> None:
    checker = StopChecker(("ab",))

    assert checker.push("ab", armed=False) + checker.push("c") + checker.flush() == "abc"
    assert checker.matched is None


def test_an_early_stop_string_is_not_found_again_later() -> None:
    """`ab` came before `min_tokens` and is held back only because it could become `abx`."""
    checker = StopChecker(("ab", "abx"))

    assert checker.push("ab", armed=False) == ""
    assert checker.push("c") == "abc"
    assert checker.matched is None
