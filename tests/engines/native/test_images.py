"""Laws of images in the core of our engine, which gets their rows.

* An answer depends on its prompt and its images alone: not on chunks that cut an image, the batch, prefix hits inside
  of an image, pauses and proposed tokens. Rows that are those of the tokens change nothing. All this holds where tokens
  of an image have three positions, and rows further parts, as well.
* One step computes an image whose positions attend to each other, also if the budget of tokens is less.
* Prompts with different pictures share no block from the first picture on.
* The tokens of images are never proposed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engines.conftest import Driver, build_engine, tiny_model
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plumbline.engines.native.scheduling.speculation import Speculator
from plumbline.engines.request import PlacedImage, RequestState
from plumbline.port.engine import (
    GenerateRequest,
    SamplingParams,
)

SIZE = 8
IMAGE = 95
"""The token of an image's positions."""
WIDTH = 6
"""Positions of an image."""
BACKENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "compiled": ({}, {}),
    "torch": ({"compiled": False}, {"batch_invariant": True}),
    "turned": ({"turned": True}, {}),
    "turned torch": ({"turned": True, "compiled": False}, {"batch_invariant": True}),
    "turned hybrid": ({"turned": True, "hybrid": True}, {"num_snapshots": 3}),
}
parts = st.lists(
    st.integers(0, 3) | st.lists(st.integers(2, 94), min_size=1, max_size=9), min_size=1, max_size=6
)
"""Parts of a prompt: a number stands for the picture of that seed."""
SETTINGS = settings(max_examples=15, deadline=None)
FEW = settings(max_examples=4, deadline=None)


def rows(seed: int, parts: int = 1) -> torch.Tensor:
    """The rows of a picture."""
    return torch.randn(WIDTH, parts * 32, generator=torch.Generator().manual_seed(seed)) * 0.3


def prompt(
    found: list[int | list[int]], whole: bool = False, turned: bool = False
) -> tuple[list[int], tuple[PlacedImage, ...]]:
    """The tokens of a prompt, and its images."""
    tokens: list[int] = []
    images = []
    for part in found:
        if isinstance(part, int):
            grid = (2, WIDTH // 2) if turned else None
            images.append(PlacedImage(len(tokens), rows(part, 1 + turned), bytes([part]) * 32, whole, grid))
            tokens += [IMAGE] * WIDTH
        else:
            tokens += part
    return tokens, tuple(images)


def add(driver: Driver, name: str, found: list[int | list[int]], whole: bool = False, **more: Any) -> None:
    turned = bool(driver.core._runner._model.given_parts)  # type: ignore[attr-defined]
    tokens, images = prompt(found, whole, turned)
    driver.add(name, tokens, images=images, **{"max_tokens": 12, "ignore_eos": True, **more})


def answered(backend: str, found: list[int | list[int]], whole: bool = False) -> tuple[list[int], list[Any]]:
    """The tokens of a request that has an engine for itself, and the logprobs of its prompt and of them."""
    options, changes = BACKENDS[backend]
    driver = build_engine(tiny_model(**options), **changes)
    add(driver, "alone", found, whole, logprobs=0, prompt_logprobs=1)
    driver.run()
    return outcome(driver, "alone")


def outcome(driver: Driver, name: str) -> tuple[list[int], list[Any]]:
    return driver.tokens[name], [*driver.prompt_logprobs[name], *driver.logprobs[name]]


@pytest.mark.parametrize("backend", BACKENDS)
@FEW
@given(
    prompts=st.lists(parts, min_size=1, max_size=3),
    budget=st.integers(3, 40),
    pauses=st.booleans(),
    whole=st.booleans(),
)
def test_an_answer_depends_on_its_prompt_and_its_images_alone(
    backend: str, prompts: list[list[int | list[int]]], budget: int, pauses: bool, whole: bool
) -> None:
    options, changes = BACKENDS[backend]
    driver = build_engine(
        tiny_model(**options), **changes, max_num_batched_tokens=budget, max_num_seqs=3, num_blocks=40
    )
    for number, found in enumerate(prompts):
        add(driver, f"r{number}", found, whole, logprobs=0, prompt_logprobs=1)
    for step in range(4 if pauses else 0):
        driver.step()
        driver.core.pause(f"r{step % len(prompts)}")
        driver.core.resume(f"r{step % len(prompts)}")
    driver.run()
    # The same again finds blocks in the cache, which end within images.
    for number, found in enumerate(prompts):
        add(driver, f"again{number}", [*found, [7]], whole, logprobs=0)
    driver.run()
    for number, found in enumerate(prompts):
        assert outcome(driver, f"r{number}") == answered(backend, found, whole)
        assert driver.tokens[f"again{number}"] == answered(backend, [*found, [7]], whole)[0]


def test_an_image_that_must_be_whole_is_never_cut_even_if_it_exceeds_the_budget() -> None:
    driver = build_engine(tiny_model(), max_num_batched_tokens=4, max_num_seqs=4, speculation=False)
    stage = driver.core._slots.stage
    cuts: list[tuple[int, int]] = []

    def watched(plan: Any) -> Any:
        cuts.extend((entry.start, entry.start + entry.count) for entry in plan.entries if entry.state.images)
        return stage(plan)

    driver.core._slots.stage = watched  # type: ignore[assignment, method-assign]
    add(driver, "streams", [[4, 5]], max_tokens=30)
    driver.step()
    add(driver, "r", [[4, 5, 6], 1, [7], 2, 3], True, max_tokens=2)
    driver.run()
    ends = [end for _, end in cuts]
    assert ends[:5] == [3, 9, 10, 16, 22]
    assert answered("compiled", [1, [7]], True) != answered("compiled", [1, [7]], False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prompt_that_ends_with_an_image_is_read_to_its_end_in_any_steps(backend: str) -> None:
    """The last position may be all that a step computes of a prompt, as in a decode."""
    options, changes = BACKENDS[backend]
    for size in (4, 7, 8):
        driver = build_engine(
            tiny_model(**options), **changes, max_num_batched_tokens=size, max_num_seqs=2, speculation=False
        )
        add(driver, "r", [[4, 5, 6], 1])
        driver.run()
        assert driver.tokens["r"] == answered(backend, [[4, 5, 6], 1])[0]
    assert answered(backend, [[4, 5, 6], 1]) != answered(backend, [[4, 5, 6], 2])


def test_rows_that_are_those_of_the_tokens_change_nothing() -> None:
    model = tiny_model()
    driver = build_engine(model)
    tokens = list(range(10, 30))
    assert isinstance(model.embedding, Tensor)
    image = PlacedImage(6, model.embedding[torch.tensor(tokens[6:15])], b"x")
    driver.add("given", tokens, images=(image,), max_tokens=9, logprobs=0)
    driver.add("text", tokens, max_tokens=9, logprobs=0)
    driver.run()
    assert driver.logprobs["given"] == driver.logprobs["text"]


@st.composite
def similar(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two prompts that may differ in one part."""
    first: Any = draw(parts)
    second = list(first)
    place = draw(st.integers(0, len(first) - 1))
    second[place] = draw(st.integers(0, 3)) if isinstance(first[place], int) else draw(parts)[0]
    return first, second


@given(similar())
@example(([[4, 5], 1, [6] * 9], [[4, 5], 2, [6] * 9]))
@example(([[IMAGE], 1, [6] * 9], [1, [IMAGE], [6] * 9]))
@SETTINGS
def test_different_pictures_never_share_blocks(prompts: tuple[Any, Any]) -> None:
    first, second = prompts
    driver = build_engine(tiny_model(), block_size=SIZE)
    add(driver, "first", first, max_tokens=1)
    driver.run()
    add(driver, "second", second, max_tokens=1)
    driver.run()
    same = 0
    known = [content(first, place) for place in range(len(prompt(first)[0]))]
    for place in range(len(prompt(second)[0])):
        if place >= len(known) or content(second, place) != known[place]:
            break
        same += 1
    most = min(same, len(prompt(second)[0]) - 1) // SIZE * SIZE
    # A block that has the first positions only of a picture is not shared with the same positions of another prompt
    # unless the picture begins at the same place, and then they are equal.
    assert driver.cached["second"] == most


def content(found: Any, place: int) -> tuple[int, int]:
    """What stands at a position: the token, and which picture."""
    tokens, images = prompt(found)
    picture = next((i.digest[0] * 100 + place - i.start for i in images if i.start <= place < i.end), -1)
    return tokens[place], picture


def test_the_tokens_of_images_are_not_proposed() -> None:
    tokens = [4, 5, 6, IMAGE, 4, 5, 6]
    for never, proposed in ((frozenset(), IMAGE), (frozenset({IMAGE}), None)):
        request = GenerateRequest(request_id="r", prompt_token_ids=tokens, sampling=SamplingParams())
        state = RequestState(request, arrival=1, eos_token_ids=frozenset(), max_model_len=64)
        found = Speculator(96, never=never).propose(state, 4, 1).tokens
        assert found[:1] == (() if proposed is None else (proposed,))
