"""Laws of the cache's shapes: the memory is enough, every request finds room, and few requests need little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.llama_cpp.shape import CacheShape, Shapes, needed
from plumbline.engines.request import RequestState
from plumbline.port.engine import GenerateRequest, SamplingParams

CONTEXT = 10_000


def request(prompt: int, limit: int | None = None) -> RequestState:
    sampling = SamplingParams(temperature=0.0, max_tokens=limit)
    found = GenerateRequest(request_id="r", prompt_token_ids=[1] * prompt, sampling=sampling)
    return RequestState(found, arrival=0, eos_token_ids=frozenset(), max_model_len=CONTEXT)


def shapes(num_cells: int, *, places: int = 64, streams: bool = True) -> Shapes:
    return Shapes(
        num_cells=num_cells, max_model_len=CONTEXT, max_running=places, max_sequences=256, streams=streams
    )


requests = st.lists(
    st.builds(request, st.integers(1, CONTEXT - 1), st.none() | st.integers(1, 500)), min_size=1, max_size=64
)


@given(states=requests, num_cells=st.integers(CONTEXT, 1 << 20), streams=st.booleans())
def test_a_shape_fits_into_the_memory_and_holds_its_requests(
    states: list[RequestState], num_cells: int, streams: bool
) -> None:
    shape = shapes(num_cells, streams=streams).choose(states)
    assert shape.num_cells <= num_cells
    if shape.streams:
        assert streams
        assert shape.holds(states[: shape.num_sequences])
        assert shape.num_sequences >= min(len(states), 8)
    else:
        assert shape.num_cells >= CONTEXT
        assert shape.num_sequences >= len(states)


@given(states=requests)
def test_sequences_have_cells_of_their_own_wherever_the_memory_suffices(states: list[RequestState]) -> None:
    longest = max(map(needed, states))
    shape = shapes((len(states) + 4) * (longest + 255)).choose(states)
    assert shape.streams


def test_the_shape_grows_with_the_requests() -> None:
    found = [
        shapes(1 << 20).choose([request(length, 64)] * count)
        for count, length in ((1, 16), (8, 16), (32, 16), (32, 900), (64, 2000))
    ]
    assert found == [
        CacheShape(8, 256, streams=True),
        CacheShape(16, 256, streams=True),
        CacheShape(64, 256, streams=True),
        CacheShape(64, 1024, streams=True),
        CacheShape(128, 4096, streams=True),
    ]
    assert shapes(1 << 20).first().num_cells <= 8192
