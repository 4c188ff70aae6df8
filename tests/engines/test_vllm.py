"""What vLLM's engine does beyond the contract of all engines. Skipped without vLLM (`nox -s engines` installs it)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from support.weights.engines import ENGINES, Answer, prompts, started

pytest.importorskip("vllm", reason="vLLM is not installed")

from plumbline.engines.vllm.configuration import VllmError, read_options
from plumbline.port.engine import EngineClosedError, RefusedRequestError, SamplerChain

KIND = next(kind for kind in ENGINES if kind.name == "vllm")


def test_a_killed_core_ends_its_requests_with_an_error_and_is_reported(tmp_path: Path) -> None:
    with started(KIND, tmp_path) as engine:

        async def scenario() -> list[Answer]:
            requests = [engine.request(prompt, max_tokens=None, ignore_eos=True) for prompt in prompts(3)]
            answers = [asyncio.ensure_future(engine.collect(request)) for request in requests]
            while engine.engine.stats().num_running < 3:
                await asyncio.sleep(0.01)
            manager = engine.engine._llm.engine_core.resources.engine_manager  # type: ignore[attr-defined]
            for process in manager.processes:
                os.kill(process.pid, signal.SIGKILL)
            return await asyncio.gather(*answers)

        for answer in engine.run(scenario()):
            assert answer.reason == "error"
            assert answer.chunks[-1].error
            assert not answer.chunks[-1].refused
        assert not engine.engine.stats().alive
        with pytest.raises(EngineClosedError):
            engine.answer(prompts(1)[0])


def test_what_vllm_would_change_is_refused(tmp_path: Path) -> None:
    with started(KIND, tmp_path) as engine:
        prompt = prompts(1)[0]
        for sampling, field in (
            ({"temperature": 2.5}, "temperature"),
            ({"chain": SamplerChain(top_a=0.3)}, "top_a"),
            ({"logprobs": 1, "logprob_token_ids": (5,)}, "logprob_token_ids"),
        ):
            with pytest.raises(RefusedRequestError) as refusal:
                engine.answer(prompt, **sampling)
            assert refusal.value.param == field
        # A prompt of several thousand tokens with a seed ended vLLM 0.32 on CPUs.
        long = (prompt * 100)[:900]
        answers = engine.answers(
            *(engine.request(long, temperature=1.0, seed=seed, max_tokens=3) for seed in range(12))
        )
        assert all(answer.reason in ("stop", "length") for answer in answers)


def test_arguments_are_read_as_json_or_text_and_unknown_ones_refused() -> None:
    assert read_options(["tensor_parallel_size=2", "quantization=fp8", "enforce-eager=true"]) == {
        "tensor_parallel_size": 2,
        "quantization": "fp8",
        "enforce_eager": True,
    }
    for wrong in ("tensor_parallel=2", "scheduler_cls=x"):
        with pytest.raises(VllmError, match=wrong.partition("=")[0]):
            read_options([wrong])
