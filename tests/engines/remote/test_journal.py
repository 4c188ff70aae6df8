"""The journal says what an engine was computing, by digests of all that it computes and of nothing else.

Laws:
    1. Every request has a digest, whatever its sampling parameters are.
    2. Ids, clients, seeds and the order of a map do not change it; everything else does.
    3. Exactly what is marked is read as being computed, whatever came before.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.remote import journal
from plumbline.engines.remote.journal import JournalEntry, RequestJournal, digest
from plumbline.engines.remote.messages import Generate
from plumbline.port.engine import GenerateRequest, SamplingParams

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2),
    "top_k": st.integers(0, 9),
    "max_tokens": st.integers(1, 9),
    "logit_bias": st.dictionaries(st.integers(0, 9), st.floats(-5, 5), max_size=4),
    "stop_token_ids": st.frozensets(st.integers(0, 9), max_size=4),
    "allowed_token_ids": st.none() | st.frozensets(st.integers(0, 9), min_size=1, max_size=4),
    "grammar": st.none() | st.text(max_size=5),
}
PARAMS = st.fixed_dictionaries({}, optional=FIELDS)


def request(fields: dict[str, Any], prompt: tuple[int, ...] = (1, 2), **more: Any) -> GenerateRequest:
    return GenerateRequest(
        **{"request_id": "a", "prompt_token_ids": prompt, "sampling": SamplingParams(**fields), **more}
    )


def hashed(found: GenerateRequest, stream: int = 1) -> bytes:
    return digest(Generate(stream, found))


@given(PARAMS, st.integers(), st.text(max_size=3))
def test_what_says_who_asks_changes_no_digest(fields: dict[str, Any], seed: int, name: str) -> None:
    first = hashed(request(fields))
    turned = dict(reversed(fields.get("logit_bias", {}).items()))
    again = {**fields, "seed": seed, **({"logit_bias": turned} if turned else {})}
    assert hashed(request(again, request_id=name, client=name), stream=7) == first
    # It is the same after a journey to another process.
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(request(fields)), type=GenerateRequest)
    assert hashed(there) == first


@given(PARAMS, PARAMS)
def test_what_is_computed_changes_the_digest(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = SamplingParams(**one) == SamplingParams(**other)
    assert (hashed(request(one)) == hashed(request(other))) == same
    assert hashed(request(one)) != hashed(request(one, prompt=(1, 3)))


@given(
    st.lists(st.tuples(st.sampled_from(["enter", "mark", "unmark", "leave"]), st.integers(0, 5)), max_size=30)
)
def test_a_journal_says_what_is_computed(steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        journal.create(path)
        written = RequestJournal(path)
        model: dict[int, bool] = {}
        for step, number in steps:
            name = str(number)
            match step:
                case "enter":
                    written.enter(name, JournalEntry(1, number, bytes([number] * 16)))
                    model.setdefault(number, False)
                case "leave":
                    written.leave(name)
                    model.pop(number, None)
                case _:
                    written.mark(name, step == "mark")
                    if number in model:
                        model[number] = step == "mark"
            found = {entry.stream: entry for entry in journal.read(path)}
            assert set(found) == {number for number, works in model.items() if works}
            assert all(entry.digest == bytes([number] * 16) for number, entry in found.items())
