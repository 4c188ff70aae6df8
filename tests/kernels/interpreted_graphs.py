"""Record decode steps under the interpreter as a GPU would; test_triton.py runs this file.

A CUDA graph repeats launches as they were recorded. So every step of a bucket must make the same calls with the same
shapes, grids and numbers, whatever its lengths and its requests are, and none may ask for a value of the device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.weights.model_families import CASES, Case
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.graphs import Capture
from plumbline.engines.native.models import describe, random_model
from plumbline.engines.native.runner import ModelRunner
from plumbline.port.engine import GenerateRequest, SamplingParams
from plumbline_kernels import _backend

assert os.environ.get("TRITON_INTERPRET") == os.environ.get("PLUMBLINE_FORCE_TRITON") == "1"

WAITING = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__")
"""Methods of tensors that wait for the device, or have a shape that depends on values."""
WAITING_CALLS = ("nonzero", "bincount", "unique", "masked_select", "_local_scalar_dense", "argwhere")


def fact(value: Any) -> Any:
    """What a graph keeps of an argument: of tensors the shape, the strides and the type, and all of a number."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), str(value.dtype)
    if isinstance(value, (list, tuple)):
        return [fact(each) for each in value]
    return str(value)


class Watch(TorchDispatchMode):
    """Lists the calls of torch and the launches of Triton while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Any] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call.__name__.partition(".")[0]
        by_mask = name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        if by_mask or name in WAITING_CALLS:
            raise AssertionError(f"{name} waits for the device")
        self.calls.append((str(call), fact(args), fact([*(kwargs or {}).items()])))
        return call(*args, **(kwargs or {}))


class Watching:
    """A recorder that runs the call again and compares what it launches."""

    def __init__(self) -> None:
        self.num_calls: list[int] = []
        self.num_kernels: list[int] = []
        self.replays = 0

    def record(self, call: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        result, calls = self._watched(call)
        self.num_calls.append(len(calls))
        self.num_kernels.append(sum(name == "launch" for name, *_ in calls))

        def replay() -> None:
            again, found = self._watched(call)
            for now, before in zip(found, calls, strict=True):
                assert now == before
            result.copy_(again)
            self.replays += 1

        return result, replay

    def _watched(self, call: Callable[[], Tensor]) -> tuple[Tensor, list[Any]]:
        watch = Watch()
        with pytest.MonkeyPatch.context() as patch, _refused(patch) as allowed:
            run = GridExecutor.__call__

            def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
                numbers = fact([*args]), fact(sorted(kwargs.items()))
                watch.calls.append(("launch", executor.fn.__name__, executor.grid, numbers))
                with torch.utils._python_dispatch._disable_current_modes(), allowed():
                    run(executor, *args, **kwargs)

            patch.setattr(GridExecutor, "__call__", launch)
            with watch:
                result = call()
        return result, watch.calls


@contextmanager
def _refused(patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Let methods that wait fail; those of the interpreter's own code run in what this yields."""
    inside = 0

    @contextmanager
    def allowed() -> Iterator[None]:
        nonlocal inside
        inside += 1
        yield
        inside -= 1

    def refusing(name: str) -> Callable[..., Any]:
        call = getattr(Tensor, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            assert inside, f"Tensor.{name} waits for the device"
            return call(*args, **kwargs)

        return method

    for name in WAITING:
        patch.setattr(Tensor, name, refusing(name))
    yield allowed


def tokens(case: Case, recorder: Watching | None) -> dict[str, list[int]]:
    """The answers to two requests, one of which comes later."""
    model = random_model(describe(json.loads(case.config().to_json_string())), seed=1, dtype=torch.float32)
    assert isinstance(model.embedding, torch.Tensor)
    model.embedding.mul_(25.0)
    config = EngineConfig(max_model_len=256, block_size=8, num_blocks=48, max_num_seqs=4)
    capture = None if recorder is None else Capture(recorder, 4, config.blocks_per_sequence)
    runner = ModelRunner(
        model, num_blocks=48, block_size=8, device=torch.device("cpu"), num_states=4, capture=capture
    )
    core = EngineCore(config, runner, frozenset(), clock=lambda: 0.0)
    found: dict[str, list[int]] = {"a": [], "b": []}

    def ask(name: str, length: int, most: int, **sampling: Any) -> None:
        prompt = [(7 * index + length) % 90 + 3 for index in range(length)]
        core.add(
            GenerateRequest(
                request_id=name,
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=most, ignore_eos=True, **sampling),
            )
        )

    def run(steps: int) -> None:
        for _ in range(steps):
            for name, chunk in core.step() if core.has_work else ():
                found[name] += chunk.token_ids

    ask("a", 7, 7, temperature=0.0)
    run(3)
    ask("b", 3, 3, temperature=1.0, seed=5)
    run(12)
    assert not core.has_work
    return found


KINDS = ["llama4_text", "gpt_oss", "gemma2", "deepseek_v2-greedy", "qwen3_next"]
"""Windows side by side and plain attention; experts, sinks and windows; soft caps; latents; and states."""


@pytest.mark.parametrize("case", [case for case in CASES if case.name in KINDS], ids=lambda case: case.name)
def test_all_steps_of_a_bucket_launch_the_same_and_wait_for_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Watching()
    found = tokens(case, recorder)
    monkeypatch.setattr(_backend, "_FORCED", False)
    assert found == tokens(case, None)
    assert len(recorder.num_calls) == 2, "a bucket of one and one of two"
    assert recorder.replays >= 4
    assert len(set(recorder.num_kernels)) == 1, "as many launches for any number of requests"
    assert recorder.num_kernels[0] >= 4 * 3, "several kernels in each of three layers"


@pytest.mark.parametrize("waits", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.nonzero()])
def test_a_call_that_waits_is_found(waits: Callable[[Tensor], Any]) -> None:
    with pytest.raises(AssertionError, match="waits for the device"):
        Watching().record(lambda: waits(torch.ones(3)))


def test_a_call_with_other_shapes_is_found() -> None:
    length = 3
    _, replay = Watching().record(lambda: torch.ones(length) + 1)
    replay()
    length = 4
    with pytest.raises(AssertionError):
        replay()
