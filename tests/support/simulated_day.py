"""Drive the real engine for a day's mix of requests on a GPU that is not there, and count the kernels it compiles.

Kernels are launched as on an sm_90 (`plumbline_kernels.without_gpu`) and run nothing. The clock advances by what a step
of an 8 B model takes on such a GPU, and by a second for each variant of a kernel that Triton has not met.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine_config import GPU_BLOCK_SIZE, EngineConfig
from plumbline.engines.native.graphs import Capture, CompileRecorder
from plumbline.engines.native.models import Transformer
from plumbline.engines.native.models.adapters.layers import KernelAdapters
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.native.slots import Slots, StepInputs
from plumbline.engines.native.warm import warm_up
from plumbline.engines.request import PlacedAdapter
from plumbline.engines.sampling import sampler
from plumbline.engines.sampling.sampler import TokensInFlight
from plumbline.port.engine import GenerateRequest
from plumbline.port.sampling_params import SamplingParams
from plumbline_kernels.sampling import sample
from plumbline_kernels.without_gpu import compiling_for

_COMPILE = 1.0
"""Seconds; what others measured (github.com/vllm-project/vllm/pull/45631)."""
_DECODE, _STEP, _TOKEN = 0.0055, 0.005, 27e-6
"""Seconds of a decode step as a graph, and of another step and each of its tokens: 8 B weights on an H100."""
_RANK = 32
_OTHER = 0.1
"""Chance of another token than the one that is drawn mostly."""


@dataclass
class Day:
    """What happened: kernels by name, and seconds."""

    before: Counter[str] = field(default_factory=Counter)
    """Compiled before the engine was ready."""
    late: Counter[str] = field(default_factory=Counter)
    """Compiled while requests waited."""
    proposed: int = 0
    """Tokens that were verified."""
    first_tokens: list[float] = field(default_factory=list)
    now: float = 0.0
    late_variants: int = 0
    """As the engine counts them."""
    prompt_seconds: float = 0.0
    """What the pace of prompts believes that a token takes."""

    def first_token(self, share: float) -> float:
        """Return the time to the first token that a share of requests had at most."""
        return float(np.quantile(self.first_tokens, share))


class _Runner(ModelRunner):
    """A runner whose steps take time."""

    day: Day
    is_exact = True
    """So tokens are proposed, as on a GPU."""

    def launch(self, inputs: StepInputs, slots: Slots) -> TokensInFlight:
        """Take the time of a decode."""
        self.day.now += _DECODE
        return super().launch(inputs, slots)

    def forward(self, inputs: StepInputs) -> None:
        """Take the time of a step."""
        super().forward(inputs)
        self.day.proposed += len(inputs.draw_states) - len({id(state) for state in inputs.draw_states})
        self.day.now += _DECODE if self._has_logits else _STEP + _TOKEN * len(inputs.token_ids)


def _drawn(generator: torch.Generator, *given: Tensor) -> Tensor:
    """Draw tokens that are in the vocabulary, mostly the same one: kernels have written none."""
    return (torch.rand(sample(*given).shape, generator=generator) < _OTHER).to(torch.int64)


def simulate(
    model_of: Callable[[], Transformer],
    seconds: float,
    *,
    rate: float = 4.0,
    warms: bool = True,
    exact: bool = False,
    seed: int = 1,
) -> Day:
    """Serve Poisson arrivals on a simulated GPU.

    Args:
        model_of: makes the model, on the CPU.
        seconds: how long requests arrive.
        rate: requests a second.
        warms: whether the engine warms up first.
        seed: of the requests.
    """
    day = Day()
    phase = day.before

    def compiled(name: str) -> None:
        phase[name] += 1
        day.now += _COMPILE

    # Kernels have written no logits, so what is there must not say which token is the largest, or that one is NaN.
    greedy = patch.object(
        sampler, "_first_largest", lambda logits: torch.zeros(len(logits), dtype=torch.int64)
    )
    drawn = patch.object(sampler, "_possible", lambda token_ids, _: token_ids)
    with greedy, drawn, compiling_for(90, compiled), torch.inference_mode():
        config = EngineConfig(
            max_model_len=8192,
            block_size=GPU_BLOCK_SIZE,
            num_blocks=1024,
            max_num_seqs=64,
            batch_invariant=exact,
        )
        model = model_of()
        runner = _Runner(
            model,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            device=torch.device("cpu"),
            num_states=config.max_num_seqs,
            capture=Capture(CompileRecorder(), config.max_num_seqs, config.blocks_per_sequence, exact),
            exact=exact,
        )
        runner.day = day
        runner._sampler._sample = partial(_drawn, torch.Generator().manual_seed(seed))
        adapters = AdapterTable(model, capacity=2, max_rank=_RANK)
        assert runner.graphs is not None
        runner.graphs.record_all()
        if warms:
            warm_up(runner, config, max_rank=adapters.max_rank)
        core = EngineCore(config, runner, frozenset(), clock=lambda: day.now)
        for name, placed in _load_adapters(model):
            core.adapters[name] = placed
        phase, day.now = day.late, 0.0
        _serve(core, day, list(_arrivals(random.Random(seed), seconds, rate, model.description.vocab_size)))
        day.late_variants = core.stats().late_variants
        day.prompt_seconds = core._pace._seconds[False] or 0.0
    return day


def _load_adapters(model: Transformer) -> Iterator[tuple[str, PlacedAdapter]]:
    """Give each layer two adapters of different ranks."""
    for slot, rank in enumerate((16, _RANK)):
        for place in model.places:
            layer = place.layer
            assert isinstance(layer.adapters, KernelAdapters)
            outputs, inputs = layer.shape
            down, up = torch.zeros(rank, inputs), torch.zeros(outputs, rank)
            layer.adapters.put(slot, (down.to(model.dtype), up.to(model.dtype)))
        yield f"adapter {slot}", PlacedAdapter(slot, slot + 1)


def _arrivals(
    draw: random.Random, seconds: float, rate: float, vocab: int
) -> Iterator[tuple[float, GenerateRequest]]:
    """Yield requests with their times: short and long, greedy and not, with all that changes a step."""
    now, number = 0.0, 0
    while now < seconds:
        now += draw.expovariate(rate)
        number += 1
        prompt = min(4000, int(draw.lognormvariate(5.7, 1.0)) + 1)
        options: dict[str, Any] = draw.choice(
            [
                {},
                {},
                {"frequency_penalty": 0.5},
                {"logprobs": 2},
                {"prompt_logprobs": 1},
                {"logit_bias": {3: 1.0}},
            ]
        )
        yield (
            now,
            GenerateRequest(
                request_id=f"r{number}",
                prompt_token_ids=[draw.randrange(vocab) for _ in range(prompt)],
                adapter=draw.choice([None, None, None, "adapter 0", "adapter 1"]),
                sampling=SamplingParams(
                    max_tokens=min(300, int(draw.lognormvariate(4.0, 0.7)) + 1),
                    ignore_eos=True,
                    temperature=0.0 if draw.random() < 0.3 else 0.7,
                    top_p=draw.choice([1.0, 0.95]),
                    top_k=draw.choice([0, 20]),
                    seed=number,
                    **options,
                ),
            ),
        )


def _serve(core: EngineCore, day: Day, arrivals: list[tuple[float, GenerateRequest]]) -> None:
    born = {request.request_id: at for at, request in arrivals}
    waiting = arrivals[::-1]
    while waiting or core.has_work:
        if not core.has_work:
            day.now = max(day.now, waiting[-1][0])
        while waiting and waiting[-1][0] <= day.now:
            core.add(waiting.pop()[1])
        for name, chunk in core.step():
            if chunk.token_ids and name in born:
                day.first_tokens.append(day.now - born.pop(name))
