"""Laws of the admission of requests.

- A request is admitted exactly if the engine and its client have room, and its id is not in flight.
- A refusal changes nothing, and a request that leaves gives its place to others.
- What a client is told before it has sent a request is what its request is told.
- Kept refusals are bounded, and are computed anew after each change of the queue.
- A request with an unknown adapter leaves nothing behind.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.admission import _REFUSALS_KEPT, Admission
from plumbline.engines.queue_time import QueueTime
from plumbline.port.engine import (
    EngineFullError,
    EngineInfo,
    GenerateRequest,
    RefusedRequestError,
    SamplingParams,
)

INFO = EngineInfo(name="e", model="m", vocab_size=9, max_model_len=9, eos_token_ids=frozenset({1}))


def request(number: int, client: str) -> GenerateRequest:
    return GenerateRequest(
        request_id=str(number), prompt_token_ids=[2], sampling=SamplingParams(), client=client
    )


@given(
    max_in_flight=st.integers(1, 4),
    max_per_client=st.integers(0, 5),
    moves=st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from("ab")), max_size=30),
)
def test_a_request_is_admitted_exactly_if_there_is_room(
    max_in_flight: int, max_per_client: int, moves: list[tuple[bool, int, str]]
) -> None:
    admission = Admission(INFO, max_in_flight=max_in_flight, max_per_client=max_per_client)
    most = min(max_in_flight, max_per_client or max_in_flight)
    assert admission.info.max_in_flight == most
    inside: dict[str, GenerateRequest] = {}
    for enters, number, client in moves:
        wanted = request(number, client)
        if not enters:
            if left := inside.pop(wanted.request_id, None):
                admission.leave(left)
            continue
        of_client = sum(each.client == client for each in inside.values())
        is_full = len(inside) >= max_in_flight or of_client >= most
        early = admission.refusal(client)
        assert (early is not None) is is_full
        if early is not None:
            with pytest.raises(EngineFullError) as found:
                admission.enter(wanted)
            assert (str(found.value), found.value.retry_after) == (str(early), early.retry_after)
            continue
        try:
            admission.enter(wanted)
        except RefusedRequestError:
            assert wanted.request_id in inside
        else:
            assert wanted.request_id not in inside
            inside[wanted.request_id] = wanted
        assert admission.ids == inside.keys()


def test_a_refused_adapter_leaves_nothing_in_the_queue() -> None:
    """`leave` does not follow, so whatever stayed would make later requests wait for it."""

    class NoAdapters:
        def enter(self, name: str | None) -> object:
            raise RefusedRequestError(f"no adapter {name!r}", param="model")

        def leave(self, entered: object) -> None:
            raise AssertionError("nothing has entered")

    queue = QueueTime()
    admission = Admission(INFO, max_in_flight=4, adapters=NoAdapters(), queue=queue)
    first = Admission(INFO, max_in_flight=4, queue=queue)
    for number in range(4):  # The queue learns how long a first token takes.
        first.enter(request(number, "a"))
        first.started(request(number, "a"))
    for number in range(4, 7):
        with pytest.raises(RefusedRequestError):
            admission.enter(request(number, "a"))

    assert queue.expected("a") == 0
    assert not admission.ids


def test_refusals_are_kept_within_bounds_and_until_the_queue_changes() -> None:
    admission = Admission(INFO, max_in_flight=2, max_per_client=1)
    admission.enter(request(0, "a"))
    for number in range(10 * _REFUSALS_KEPT):
        assert admission.refusal("a", number) is not None
        assert len(admission._refusals) <= _REFUSALS_KEPT

    assert admission.refusal("b") is None
    with admission.arrivals.one("c"):
        assert "limit of this server" in str(admission.refusal("b"))
    assert admission.refusal("b") is None
    assert "limit for each" in str(admission.refusal("a"))
    admission.enter(request(1, "b"))
    assert "limit of this server" in str(admission.refusal("a"))
    admission.leave(request(0, "a"))
    assert admission.refusal("a") is None
