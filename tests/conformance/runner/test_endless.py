"""Test which silence of a server is too long for an answer (HTTP-17).

- Comments keep a stream open and are no answer.
- A silence is too long only if it is most of the wait, and longer than the tokens of the request take this server.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline_conformance.runner.budget import cost_of
from plumbline_conformance.runner.endless import is_too_long, silence_of
from plumbline_conformance.suite.scenario import Request
from plumbline_conformance.transcript.exchange import Exchange

Frames = list[tuple[float, bytes]]
REQUEST = Request(path="/chat/completions", json={"messages": [], "max_tokens": 100})
PROOF = b'{"usage": {"completion_tokens": 10, "total_tokens": 500}}'


def exchange(frames: Frames, status: int = 200) -> Exchange:
    return Exchange(
        method="POST", url="http://a/v1", request_headers={}, request_body=b"", status=status, frames=frames
    )


@pytest.mark.parametrize(
    ("frames", "silence"),
    [
        ([], 60),
        ([(5.0, b"data: {}\n\n")], 55),
        ([(5.0, b"data: {}\n\n"), (50.0, b": keep-alive\n\n")], 55),
        ([(50.0, b": keep-alive\n\ndata: {}\n\n")], 10),
        ([(50.0, b'{"id": ')], 10),
    ],
)
def test_the_silence_begins_after_the_last_byte_that_is_no_comment(frames: Frames, silence: float) -> None:
    assert silence_of(exchange(frames), 60.0) == silence


@given(st.floats(0, 100), st.floats(0.001, 100), st.floats(0, 10))
def test_a_slower_server_is_accused_of_no_more(silence: float, took: float, slower: float) -> None:
    fast, slow = (
        is_too_long(silence, 60.0, REQUEST, exchange([(0.0, PROOF)]), one) for one in (took, took + slower)
    )
    assert fast or not slow


@pytest.mark.parametrize(
    ("silence", "took", "too_long"), [(60.0, 0.1, True), (29.0, 0.1, False), (60.0, 60.0, False)]
)
def test_a_silence_is_compared_with_the_wait_and_with_the_speed(
    silence: float, took: float, too_long: bool
) -> None:
    assert is_too_long(silence, 60.0, REQUEST, exchange([(0.0, PROOF)]), took) is too_long


def test_a_server_that_needs_the_whole_wait_for_the_tokens_is_not_accused() -> None:
    seconds_a_token = 60.0 / cost_of(REQUEST)
    assert not is_too_long(60.0, 60.0, REQUEST, exchange([(0.0, PROOF)]), 10 * seconds_a_token)


@pytest.mark.parametrize(
    "proof",
    [
        b'{"usage": {"prompt_tokens": 490, "completion_tokens": 10, "total_tokens": 500}}',
        b'data: {"response": {"usage": {"input_tokens": 490, "output_tokens": 10, "total_tokens": 500}}}\n\n',
        b'{"usage": {"prompt_tokens": 490, "total_tokens": 490}}',
        b'{"usage": {"completion_tokens": "10", "total_tokens": 500}}',
        b'{"usage": 500}',
    ],
)
def test_tokens_of_the_prompt_do_not_make_a_server_fast(proof: bytes) -> None:
    """A server that generates 10 tokens in 6 s needs 60 s for the 100 of the request."""
    assert not is_too_long(60.0, 60.0, REQUEST, exchange([(0.0, proof)]), 6.0)
