"""A cache for the core of llama.cpp that checks every call, and a model that is a function of the tokens."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.llama_cpp.core import LlamaCppCore
from plumbline.engines.llama_cpp.library import Status
from plumbline.engines.llama_cpp.shape import CacheShape, Shapes
from plumbline.engines.request import RequestState
from plumbline.port.engine import GenerateRequest, SamplingParams

VOCAB, EOS = 50, 1


def logits_of(tokens: list[int]) -> NDArray[np.float32]:
    """The next token's logits after these tokens."""
    rng = np.random.default_rng(hash(tuple(tokens)) % 2**32)
    return rng.normal(0, 3, VOCAB).astype(np.float32)


class FixedShapes(Shapes):
    """One shape for all requests."""

    def __init__(self, shape: CacheShape) -> None:
        self.num_cells = shape.num_cells
        self._shape = shape

    def first(self) -> CacheShape:
        return self._shape

    def choose(self, states: Collection[RequestState]) -> CacheShape:
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

    def reshape(self, shape: CacheShape) -> None:
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
        shapes = FixedShapes(CacheShape(num_sequences, 104 if streams else num_cells, streams))
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
