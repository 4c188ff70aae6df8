"""Laws of rotary positions with three axes.

* They are those of transformers' `get_rope_index`, for any texts and images.
* Those of a part of a sequence are that part of those of the whole.
* A step has those of its requests, where each number below zero stands for a column of several.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from plumbline.engines.native.models.axes import AxisPositions, axis_positions
from plumbline.engines.request import PlacedImage, RequestState
from plumbline.port.engine import GenerateRequest, SamplingParams

sizes = st.integers(1, 6)
prompts = st.lists(st.tuples(st.integers(1, 9), sizes, sizes), min_size=1, max_size=4)
"""Texts of so many tokens, each before an image of so many rows and columns."""


def placed(prompt: list[tuple[int, int, int]]) -> tuple[PlacedImage, ...]:
    images: list[PlacedImage] = []
    for text, rows, columns in prompt:
        start = (images[-1].end if images else 0) + text
        images.append(PlacedImage(start, torch.zeros(rows * columns, 1), b"", grid=(rows, columns)))
    return tuple(images)


@given(prompt=prompts, after=st.integers(0, 9), ends=st.tuples(st.integers(0, 150), st.integers(0, 150)))
def test_positions_are_those_of_transformers(
    prompt: list[tuple[int, int, int]], after: int, ends: tuple[int, int]
) -> None:
    images = placed(prompt)
    length = images[-1].end + after
    kinds = torch.zeros(1, length, dtype=torch.long)
    for image in images:
        kinds[:, image.start : image.end] = 1
    model = Qwen3VLModel.__new__(Qwen3VLModel)
    model.__dict__["config"] = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    grids = torch.tensor([[1, 2 * rows, 2 * columns] for _, rows, columns in prompt])
    theirs, delta = model.get_rope_index(kinds, kinds, grids)
    whole = axis_positions(images, 0, length)
    assert whole.tolist() == theirs[:, 0].tolist()
    # What is drawn goes on where the images leave it.
    assert axis_positions(images, length, 1).tolist() == [[length + int(delta)]] * 3
    first, last = (min(end, length) for end in sorted(ends))
    assert axis_positions(images, first, last - first).tolist() == whole[:, first:last].tolist()


@given(
    st.lists(
        st.tuples(prompts | st.just([]), st.integers(0, 150), st.integers(1, 20)), min_size=1, max_size=4
    ),
    st.booleans(),
)
def test_a_step_has_the_positions_of_its_requests(
    requests: list[tuple[list[tuple[int, int, int]], int, int]], has_text: bool
) -> None:
    found = AxisPositions(6)
    states, expected, slots, starts = [], [], [], [0]
    positions: list[int] = []
    for number, (prompt, start, count) in enumerate([*requests, ([], 3, 1)] if has_text else requests):
        request = GenerateRequest(
            request_id=str(number), prompt_token_ids=[2], sampling=SamplingParams(), media=None
        )
        state = RequestState(
            request, arrival=1, eos_token_ids=frozenset(), max_model_len=400, images=placed(prompt)
        )
        state.slot = 5 - number
        found.assign(state)
        states.append(state)
        expected.append(axis_positions(state.images, start, count))
        slots += [state.slot] * count
        positions += range(start, start + count)
        starts.append(len(positions))
    step = found.turned(
        states, np.array(starts, dtype=np.int32), np.array(slots), np.array(positions, dtype=np.int64)
    )
    several = np.zeros((3, 0)) if step[1] is None else step[1]
    assert step[1] is None or step[1].shape[1]
    ours = [several[:, -1 - each].tolist() if each < 0 else [each] * 3 for each in step[0]]
    assert ours == np.concatenate(expected, 1).T.tolist()
