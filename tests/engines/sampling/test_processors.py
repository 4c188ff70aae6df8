"""Laws of processors of logits.

1. What they return is what is drawn from, in their order, before the grammar.
2. One that fails ends its own request with its name, and no token of another request changes.
3. A name or arguments that a request cannot have are refused by the field, before the first token.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import scripted, tiny_engine
from torch import Tensor

from plumbline.engines.filters.processors import load_processors
from plumbline.engines.native.engine import NativeEngine
from plumbline.port.engine import GenerateRequest, ProcessorCall, RefusedRequestError, SamplingParams

FIELD = "logits_processors[0]"


class Only:
    """Allow these tokens only."""

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids

    def __call__(self, prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Tensor) -> Tensor:
        row = torch.full_like(logits, float("-inf"))
        for token in self.token_ids:
            row[token] = logits[token].clamp(min=-1e9)
        return row


class Count:
    """Draw the number of tokens so far."""

    def __call__(self, prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Tensor) -> Tensor:
        logits.fill_(-1e9)
        logits[100 + len(output_ids)] = float(len(prompt_ids))
        return logits


class Faulty:
    """Fail after some tokens."""

    def __init__(self, kind: str, after: int = 0) -> None:
        self.kind, self.after = kind, after

    def __call__(self, prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Tensor) -> Any:
        if len(output_ids) < self.after:
            return logits
        faults: dict[str, Callable[[], Any]] = {
            "raises": lambda: 1 // 0,
            "nothing": lambda: None,
            "shape": lambda: logits[:-1],
            "type": lambda: logits.double(),
            "nan": lambda: logits * float("nan"),
            "none left": lambda: torch.full_like(logits, float("-inf")),
        }
        return faults[self.kind]()


REGISTERED: dict[str, Any] = {"only": Only, "count": Count, "faulty": Faulty}
FAULTS = ("raises", "nothing", "shape", "type", "nan", "none left")


def call(name: str, *args: Any, **kwargs: Any) -> ProcessorCall:
    return ProcessorCall(name, FIELD, args, kwargs)


async def answers(*samplings: SamplingParams) -> list[tuple[list[int], str | None, str | None]]:
    """The tokens, the finish reason and the error of each request; all run at once."""
    engine: NativeEngine = tiny_engine()
    engine.processors = REGISTERED
    await engine.start()

    async def one(number: int, sampling: SamplingParams) -> tuple[list[int], str | None, str | None]:
        request = GenerateRequest(
            request_id=f"r{number}", prompt_token_ids=[1 + number, 2, 3], sampling=sampling
        )
        tokens: list[int] = []
        async for chunk in engine.generate(request):
            tokens += chunk.token_ids
        return tokens, chunk.finish_reason, chunk.error

    try:
        return list(await asyncio.gather(*(one(*item) for item in enumerate(samplings))))
    finally:
        await engine.stop()


def drawing(*calls: ProcessorCall, seed: int = 1, **more: Any) -> SamplingParams:
    return SamplingParams(processors=calls, seed=seed, max_tokens=6, ignore_eos=True, **more)


@settings(max_examples=6)
@given(st.sets(st.integers(10, 200), min_size=2, max_size=4), st.integers(0, 9), st.sampled_from([0.0, 1.0]))
def test_the_draw_is_from_what_they_return(allowed: set[int], seed: int, temperature: float) -> None:
    first = min(allowed)
    sampling: dict[str, Any] = {"seed": seed, "temperature": temperature}
    found = asyncio.run(
        answers(
            drawing(call("only", *allowed), **sampling),
            drawing(call("only", *allowed), call("only", first), **sampling),
            drawing(call("count"), **sampling),
            drawing(call("only", *allowed), grammar=f'start: "{"a" * 6}"', **sampling),
        )
    )
    assert set(found[0][0]) <= allowed
    assert found[1][0] == [first] * 6
    assert found[2][0] == [100, 101, 102, 103, 104, 105]
    # They leave no token that the grammar has.
    assert found[3][1] == "error" or set(found[3][0]) <= allowed


@pytest.mark.parametrize("kind", FAULTS)
def test_one_that_fails_ends_its_own_request(kind: str) -> None:
    others = (drawing(seed=3, temperature=1.0), drawing(seed=4, temperature=0.0, logprobs=1))
    alone = asyncio.run(answers(drawing(), *others))[1:]
    (tokens, reason, error), *found = asyncio.run(
        answers(drawing(call("faulty", kind, after=2), grammar=None), *others)
    )
    assert found == alone
    assert (len(tokens), reason) == (2, "error")
    assert "'faulty'" in (error or "")


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ((call("unknown"),), "does not have. Registered: count, faulty, only"),
        ((call("faulty"),), "does not take these arguments"),
        ((call("count", 1),), "does not take these arguments"),
        ((call("faulty", kinds="x"),), "kinds"),
    ],
)
def test_what_a_request_cannot_have_is_refused_by_its_field(
    calls: tuple[ProcessorCall, ...], reason: str
) -> None:
    with pytest.raises(RefusedRequestError, match=reason) as raised:
        asyncio.run(answers(drawing(*calls)))
    assert raised.value.param == FIELD


def test_an_engine_without_them_refuses_them_by_name() -> None:
    async def ask() -> None:
        request = GenerateRequest(request_id="r", prompt_token_ids=[1], sampling=drawing(call("count")))
        async for _ in scripted().generate(request):
            pass

    with pytest.raises(RefusedRequestError) as raised:
        asyncio.run(ask())
    assert raised.value.param == "logits_processors"


def test_classes_are_imported_by_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("given_processors")
    module.Only = Only  # type: ignore[attr-defined]
    module.text = "no class"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "given_processors", module)
    assert load_processors((("a", "given_processors:Only"),))["a"] is Only
    for name, place in (
        ("a", "no_such_module:Only"),
        ("a", "given_processors:None"),
        ("a", "given_processors:text"),
        ("a b", "given_processors:Only"),
    ):
        with pytest.raises(ValueError, match=f"{name}={place} cannot be imported"):
            load_processors(((name, place),))
