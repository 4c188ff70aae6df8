"""Laws of the admission of requests.

- A request is admitted exactly if the engine and its client have room, and its id is not in flight.
- A refusal changes nothing, and a request that leaves gives its place to others.
- What a client is told before it has sent a request is what its request is told.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.admission import Admission
from plumbline.engines.port import (
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
