"""Laws of the llama.cpp core, on a cache that checks every call and a model that is a function of the tokens.

The model itself is tried by `tests/engines/contract`, where llama-cpp-python is installed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from plumbline.engines.llama_cpp.core import LlamaCppCore
from plumbline.engines.llama_cpp.library import Status
from plumbline.engines.llama_cpp.shape import Shape, Shapes
from plumbline.engines.port import GenerateRequest, SamplingParams
from plumbline.engines.request import RequestState

VOCAB, EOS = 50, 1


def logits_of(tokens: list[int]) -> NDArray[np.float32]:
    """The next token's logits after these tokens."""
    rng = np.random.default_rng(hash(tuple(tokens)) % 2**32)
    return rng.normal(0, 3, VOCAB).astype(np.float32)


class FixedShapes(Shapes):
    """One shape for all requests."""

    def __init__(self, shape: Shape) -> None:
        self.num_cells = shape.num_cells
        self._shape = shape

    def first(self) -> Shape:
        return self._shape

    def choose(self, states: Collection[RequestState]) -> Shape:
        return self._shape


class CheckingCache:
    """A cache that knows the tokens of each sequence, and refuses gaps and what does not fit.

    A cell that several sequences share counts once, as in llama.cpp's unified cache.
    """

    vocab_size, eos_token_ids, can_share = VOCAB, frozenset({EOS}), True

    def __init__(
        self,
        shapes: Shapes,
        *,
        places: int = 4,
        max_batch: int = 16,
        max_model_len: int = 100,
        saves: bool = True,
    ) -> None:
        self.shapes, self.max_running, self.max_batch, self.max_model_len = (
            shapes,
            places,
            max_batch,
            max_model_len,
        )
        self.saves = saves
        self.shape = shapes.first()
        self.cells: dict[int, list[tuple[int, int]]] = {}
        """By sequence: (cell, token)."""
        self.next_cell = 0
        self.rows: list[NDArray[np.float32]] = []
        self.num_computed = 0
        self.most_rows = 0
        self.num_copies = 0
        self.num_broken = 0
        """Batches that have a gap between their sequences."""
        self.num_divided = 0
        self.most_cells = self.shape.num_cells

    def decode(
        self, token_ids: list[int], positions: list[int], sequences: list[int], wanted: list[bool]
    ) -> Status:
        assert 0 < len(token_ids) <= self.max_batch
        used = {cell for held in self.cells.values() for cell, _ in held}
        if self.shape.streams:
            assert sequences == sorted(sequences)
            self.num_broken += max(sequences) - min(sequences) >= len(set(sequences))
        elif len(used) + len(token_ids) > self.shape.num_cells:
            return "no room"
        self.rows = []
        for token, position, sequence, want in zip(token_ids, positions, sequences, wanted, strict=True):
            assert 0 <= sequence < self.shape.num_sequences
            held = self.cells.setdefault(sequence, [])
            assert position == len(held) < self.max_model_len, "no gaps, and nothing twice"
            held.append((self.next_cell, token))
            self.next_cell += 1
            if want:
                self.rows.append(logits_of([token for _, token in held]))
        if self.shape.streams:
            assert all(len(held) <= self.shape.length for held in self.cells.values())
        self.num_computed += len(token_ids)
        self.most_rows = max(self.most_rows, len(self.rows))
        return "done"

    def logits(self, count: int) -> NDArray[np.float32]:
        assert count == len(self.rows)
        return np.stack(self.rows)

    def copy(self, source: int, target: int, length: int) -> None:
        assert source != target
        assert not self.cells.get(target), "the target is empty"
        assert len(self.cells[source]) >= length
        self.cells[target] = self.cells[source][:length]
        self.num_copies += self.shape.streams

    def truncate(self, sequence: int, length: int) -> None:
        assert 0 < length <= len(self.cells[sequence])
        del self.cells[sequence][length:]

    def remove(self, sequence: int) -> None:
        self.cells.pop(sequence, None)

    def clear(self) -> None:
        self.cells.clear()

    def reshape(self, shape: Shape) -> None:
        assert shape != self.shape
        self.shape = shape
        self.cells.clear()
        self.num_divided += 1
        self.most_cells = max(self.most_cells, shape.num_cells)

    def save(self, sequence: int, length: int) -> NDArray[np.uint8] | None:
        held = [token for _, token in self.cells[sequence]]
        assert len(held) == length
        return np.array(held, np.uint8) if self.saves else None

    def restore(self, sequence: int, saved: NDArray[np.uint8]) -> bool:
        assert not self.cells.get(sequence)
        if not self.shape.streams and sum(map(len, self.cells.values())) + len(saved) > self.shape.num_cells:
            return False
        self.cells[sequence] = [(self.next_cell + i, int(token)) for i, token in enumerate(saved)]
        self.next_cell += len(saved)
        return True


def make_cache(
    *,
    streams: bool | None = False,
    places: int = 4,
    num_sequences: int = 6,
    num_cells: int = 1000,
    max_model_len: int = 100,
    **fields: Any,
) -> CheckingCache:
    """One pool of `num_cells`, or `num_sequences` of 104 cells; without `streams`, the shape follows the requests."""
    longest = min(max_model_len, num_cells)
    shapes: Shapes
    if streams is None:
        shapes = Shapes(
            num_cells=num_cells, max_model_len=longest, max_running=places, max_sequences=64, step=8
        )
    else:
        shapes = FixedShapes(Shape(num_sequences, 104 if streams else num_cells, streams))
    return CheckingCache(shapes, places=places, max_model_len=longest, **fields)


class Run:
    """A core, stepped by hand. The fields are those of `make_cache`."""

    def __init__(self, **cache: Any) -> None:
        self.cache = make_cache(**cache)
        self.core = LlamaCppCore(self.cache)
        self.prompts: dict[str, list[int]] = {}
        self.limits: dict[str, int] = {}
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.cached: dict[str, int] = {}

    def add(self, name: str, prompt: list[int], limit: int = 10, **fields: Any) -> None:
        self.prompts[name], self.limits[name], self.tokens[name] = prompt, limit, []
        extra = {key: fields.pop(key) for key in ("priority", "cache_salt") if key in fields}
        sampling = SamplingParams(**({"temperature": 0.0, "max_tokens": limit} | fields))
        self.core.add(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, **extra))

    def take(self, outputs: list[Any]) -> None:
        for name, chunk in outputs:
            assert name not in self.reasons
            self.cached.setdefault(name, chunk.num_cached_tokens)
            self.tokens[name] += chunk.token_ids
            if chunk.finish_reason is not None:
                self.reasons[name] = chunk.finish_reason

    def finish(self) -> None:
        for _ in range(3000):
            if not self.core.has_work:
                self.core.check_integrity()
                return
            self.take(self.core.step())
        raise AssertionError("it never ends")

    def check(self, *, ends: bool = True) -> None:
        """Every answer is that of the model, or the beginning of it if it was aborted."""
        for name, found in self.tokens.items():
            wanted = greedy(self.prompts[name], self.limits[name], ends=ends)
            assert found == wanted[: len(found)], name
            assert self.reasons[name] == "abort" or found == wanted, name


def greedy(prompt: list[int], limit: int, *, ends: bool = True) -> list[int]:
    output: list[int] = []
    while len(output) < limit:
        output.append(int(logits_of(prompt + output).argmax()))
        if ends and output[-1] == EOS:
            break
    return output


prompts = st.lists(st.integers(2, 6), min_size=1, max_size=45)


@settings(max_examples=40, deadline=None)
@given(
    longest=st.integers(40, 90),
    shorts=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), min_size=1, max_size=6),
    streams=st.booleans(),
)
def test_a_short_prompt_does_not_wait_for_a_long_one_which_keeps_half_of_each_batch(
    longest: int, shorts: list[tuple[int, int]], streams: bool
) -> None:
    """Batches have 16 tokens. The prompts share nothing."""
    run = Run(streams=streams, places=8, num_sequences=8)
    run.add("long", [2] * longest, 1)
    begun: dict[str, int] = {}
    answered: dict[str, int] = {}
    step = of_long = 0
    while run.core.has_work or len(begun) < len(shorts):
        for number, (at, length) in enumerate(shorts):
            if at == step:
                begun[str(number)] = step
                run.add(str(number), [3 + number] * length, 1)
        before = of_long
        states = [*run.core.queues.running, *run.core.queues.waiting]
        long = next((each for each in states if each.request.request_id == "long"), None)
        run.take(run.core.step())
        of_long = longest if long is None or "long" in run.reasons else long.num_computed_tokens
        assert of_long - before >= min(8, longest - before)
        answered |= {name: step for name in run.reasons if name not in answered}
        step += 1
    # At most six short prompts of 8 tokens are before one of them, and each batch computes as many.
    assert all(answered[name] - begun[name] <= 6 for name in begun)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(prompts, st.integers(1, 20)), min_size=1, max_size=9),
    cells=st.integers(70, 300),
    streams=st.sampled_from([True, False, None]),
    saves=st.booleans(),
)
def test_answers_do_not_depend_on_the_room_or_on_each_other(
    requests: list[tuple[list[int], int]], cells: int, streams: bool | None, saves: bool
) -> None:
    """Prompts of few tokens share beginnings; small caches make requests wait again."""
    run = Run(num_cells=cells, streams=streams, saves=saves)
    for index, (prompt, limit) in enumerate(requests):
        run.add(str(index), prompt, limit)
        run.take(run.core.step())
    run.finish()
    run.check()


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["abort", "pause", "resume", "add", "step", "step"]), st.integers(0, 5), prompts
        ),
        max_size=25,
    ),
    streams=st.sampled_from([True, False, None]),
)
def test_aborts_and_pauses_at_any_moment_disturb_nobody(
    moves: list[tuple[str, int, list[int]]], streams: bool | None
) -> None:
    run = Run(num_cells=150, streams=streams)
    for number, (move, index, prompt) in enumerate(moves):
        name = str(index)
        if move == "abort" and name in run.prompts and name not in run.reasons:
            run.take(run.core.abort(name))
        elif move == "pause":
            run.core.pause(name)
        elif move == "resume":
            run.core.resume(name)
        elif move == "add":
            run.add(name if name not in run.prompts else f"more{number}", prompt)
        else:
            run.take(run.core.step())
        run.core.check_integrity()
    for index in range(6):
        run.core.resume(str(index))
    run.finish()
    run.check()


@pytest.mark.parametrize("streams", [False, True, None])
def test_a_shared_beginning_is_not_computed_again(streams: bool | None) -> None:
    run = Run(streams=streams)
    prompt = list(range(2, 42))
    run.add("first", prompt, 3)
    run.finish()
    before = run.cache.num_computed
    run.add("second", [*prompt, 45, 46], 3)
    run.finish()
    assert run.cached == {"first": 0, "second": 40}
    assert run.cache.num_computed - before == 2 + 2
    run.add("foreign", prompt, 3, cache_salt="other")
    run.finish()
    assert run.cached["foreign"] == 0
    run.check()


@pytest.mark.parametrize("streams", [False, True, None])
def test_a_running_request_is_shared_with_too(streams: bool | None) -> None:
    run = Run(streams=streams)
    prompt = list(range(2, 42))
    run.add("first", prompt, 20)
    for _ in range(5):
        run.take(run.core.step())
    run.add("second", prompt, 20)
    run.finish()
    assert run.cached["second"] == 39
    run.check()


def test_a_prompt_whose_logprobs_are_wanted_is_computed_whole() -> None:
    run = Run()
    prompt = list(range(2, 42))
    run.add("first", prompt, 1)
    run.finish()
    chunks = []
    run.add("second", prompt, 1, prompt_logprobs=2)
    while run.core.has_work:
        chunks += [chunk for _, chunk in run.core.step()]
    entries = chunks[0].prompt_logprobs
    assert len(entries) == len(prompt)
    assert entries[0] is None
    for position, entry in enumerate(entries[1:], start=1):
        row = logits_of(prompt[:position]).astype(np.float64)
        row -= row.max() + np.log(np.exp(row - row.max()).sum())
        assert entry.token_id == prompt[position]
        assert entry.logprob == pytest.approx(row[prompt[position]], abs=1e-4)
        assert entry.rank == 1 + int((row > row[prompt[position]]).sum())


@settings(max_examples=20, deadline=None)
@given(steps=st.integers(1, 3), neighbours=st.integers(0, 5))
def test_prompt_logprobs_are_whole_after_a_pause(steps: int, neighbours: int) -> None:
    """Streams that began during the pause take their share of each batch, so the prompt is cut elsewhere."""
    run = Run(places=6, max_batch=24)
    prompt = [2 + i % 7 for i in range(80)]
    run.add("scored", prompt, 1, prompt_logprobs=1)
    for _ in range(steps):
        run.take(run.core.step())
    run.core.pause("scored")
    for index in range(neighbours):
        run.add(str(index), [3], 20, ignore_eos=True)
    run.take(run.core.step())
    run.core.resume("scored")
    chunks = []
    while run.core.has_work:
        chunks += [chunk for name, chunk in run.core.step() if name == "scored"]
    assert [entry.token_id for entry in chunks[0].prompt_logprobs[1:]] == prompt[1:]


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_the_rows_of_logits_of_a_batch_are_bounded(lengths: list[int]) -> None:
    """However many prompts are scored together."""
    run = Run(places=6, max_batch=500)
    for index, length in enumerate(lengths):
        run.add(str(index), [2 + (index + i) % 7 for i in range(length)], 2, prompt_logprobs=1)
    run.finish()
    run.check()
    assert run.cache.most_rows <= 64 + len(lengths)


def test_what_is_kept_for_others_is_bounded() -> None:
    run = Run()
    for index in range(6):
        run.add(str(index), [index + 2] * 60, 5, ignore_eos=True)
        run.finish()
        assert sum(map(len, run.cache.cells.values())) <= run.cache.max_model_len
        assert len(run.cache.cells) == 1


def test_the_last_request_in_order_makes_room() -> None:
    """A later request of an earlier priority keeps its place."""
    run = Run(num_cells=130)
    run.add("late", [2] * 30, 60, ignore_eos=True)
    run.take(run.core.step())
    run.add("soon", [3] * 30, 60, ignore_eos=True, priority=-1)
    while len(run.tokens["soon"]) < 60:
        run.take(run.core.step())
    assert run.core.stats().num_preemptions
    assert len(run.tokens["late"]) < 60
    run.finish()
    assert len(run.tokens["late"]) == 60


def test_decodes_come_before_the_chunks_of_a_long_prompt() -> None:
    run = Run(max_batch=8)
    run.add("stream", [2, 3], 30)
    run.take(run.core.step())
    run.add("long", [4] * 60, 2)
    for _ in range(6):
        before = len(run.tokens["stream"])
        run.take(run.core.step())
        assert len(run.tokens["stream"]) == before + 1 or "stream" in run.reasons
    run.finish()
    run.check()


@pytest.mark.parametrize("streams", [False, True, None])
def test_a_failed_step_clears_everything(streams: bool | None) -> None:
    run = Run(streams=streams)
    run.add("0", [2, 3, 4], 20, ignore_eos=True)
    run.take(run.core.step())
    run.take(run.core.recover("it failed"))
    assert run.reasons == {"0": "error"}
    run.core.check_integrity()
    assert not run.core.has_work
    assert not run.cache.cells
    run.tokens.clear()
    run.add("again", [2, 3], 5)
    run.finish()
    run.check()


def test_requests_move_when_the_cache_is_divided_anew() -> None:
    """Neither more requests, nor a longer answer computes anything twice."""
    run = Run(streams=None, places=12, num_cells=40_000, max_model_len=2000)
    run.add("first", [2] * 700, 400, ignore_eos=True)
    while len(run.tokens["first"]) < 10:
        run.take(run.core.step())
    for index in range(11):
        run.add(str(index), [3 + index] * 15, 20, ignore_eos=True)
    run.finish()
    run.check(ends=False)
    assert run.cache.num_divided == 2
    assert run.core.stats().num_preemptions == 0
    assert run.cache.num_computed == 700 + 399 + 11 * (15 + 19)


@settings(max_examples=60, deadline=None)
@given(bursts=st.lists(st.integers(1, 8), min_size=1, max_size=8), shared=st.integers(0, 45))
def test_requests_run_together_however_they_come(bursts: list[int], shared: int) -> None:
    """The cache follows them, also if they share a beginning."""
    run = Run(streams=None, places=32, num_cells=8000, max_batch=512)
    number = 0
    for burst in bursts:
        for _ in range(min(burst, 32 - number)):
            run.add(str(number), [*[2] * shared, *[3 + number] * (46 - shared)], 50, ignore_eos=True)
            number += 1
        run.take(run.core.step())
    for _ in range(10):
        run.take(run.core.step())
    assert run.core.stats().num_running == number


def test_a_longer_request_starts_as_soon_as_nothing_runs() -> None:
    """However much was lost when the cache was divided the last time."""
    run = Run(streams=None, num_cells=40_000, max_model_len=4000, max_batch=4000, saves=False)
    run.add("first", [2] * 700, 1000, ignore_eos=True)
    while not run.cache.num_divided:
        run.take(run.core.step())
        run.cache.max_batch = 16 if len(run.tokens["first"]) > 320 else 4000
    run.take(run.core.abort("first"))
    run.cache.max_batch = 4000
    run.add("long", [4] * 3000, 3)
    run.finish()
    assert len(run.tokens["long"]) == 3


def test_what_finished_requests_left_moves_too() -> None:
    run = Run(streams=None, places=12, num_cells=4000)
    run.add("first", [2] * 20, 2)
    run.finish()
    for index in range(12):
        run.add(str(index), [3 + index] * 60, 10)
    run.finish()
    assert run.cache.num_divided
    run.add("again", [2] * 21, 2)
    run.finish()
    assert run.cached["again"] == 20


def test_a_running_request_that_outgrows_its_sequence_goes_on() -> None:
    """Also where llama.cpp gives no states, so that it is computed again."""
    run = Run(streams=None, places=2, num_cells=10_000, max_model_len=2000, saves=False)
    run.add("first", [2] * 700, 400, ignore_eos=True)
    run.add("second", [3] * 5, 20, ignore_eos=True)
    run.finish()
    run.check(ends=False)
    assert run.cache.num_divided


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=12), cells=st.integers(100, 900))
def test_the_memory_bounds_every_shape(lengths: list[int], cells: int) -> None:
    run = Run(streams=None, places=8, num_cells=cells)
    for index, length in enumerate(lengths):
        run.add(str(index), [2 + index] * length, 100 - length, ignore_eos=True)
    run.finish()
    run.check(ends=False)
    assert run.cache.most_cells <= cells
