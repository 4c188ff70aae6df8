"""Laws of adapters in our engine.

* An answer depends on its request and its adapter alone: in any batch, any chunks, after preemptions and prefix hits.
* Cached prefixes belong to one adapter, and to none that has its name or its slot later.
* An adapter is unloaded when its last request has ended; the memory of its weights is given back.
* With places for adapters, requests without one have the same bits as in an engine without them.
"""

from __future__ import annotations

import asyncio
import json
import os
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from engines.conftest import EOS, Driver, build_engine, config, tiny_model
from engines.native.test_reproducibility import BACKENDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from support.laws import EXPLORED

from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.models import Transformer
from plumbline.engines.native.runner import ModelRunner
from plumbline.port.engine import (
    EngineClosedError,
    GenerateRequest,
    RefusedRequestError,
    SamplingParams,
    TokenChunk,
)

NAMES = (None, "a", "b")


@cache
def folder(name: str, rank: int = 4, **kind: bool) -> Path:
    """Write an adapter of the tiny model, or of the one of a kind."""
    path = Path(mkdtemp(prefix="adapter-", dir=os.environ["XDG_DATA_HOME"])) / name
    path.mkdir()
    generator = torch.Generator().manual_seed(ord(name[0]))
    weights = {}
    for place in tiny_model(**kind).places:
        for module, outputs in zip(place.names, place.widths, strict=True):
            key = f"base_model.model.{module}.lora_"
            weights[f"{key}A.weight"] = torch.randn(rank, place.inputs, generator=generator) * 0.1
            weights[f"{key}B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.1
    save_file(weights, path / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (path / "adapter_config.json").write_text(json.dumps(fields))
    return path


def fresh(backend: str, capacity: int = 2) -> tuple[Transformer, AdapterTable]:
    """Make a model with places for adapters."""
    arguments = BACKENDS[backend][0]
    model = tiny_model.__wrapped__(**arguments)
    return model, AdapterTable(model, capacity=capacity, max_rank=16)


@cache
def adapted(backend: str) -> tuple[Transformer, dict[str, Any]]:
    """Return a model with the adapters a and b, by name."""
    model, table = fresh(backend)
    kind = {name: value for name, value in BACKENDS[backend][0].items() if name in ("experts", "hybrid")}
    return model, {name: table.put(table.prepare(folder(name, **kind))) for name in "ab"}


def build(backend: str, **changes: Any) -> Driver:
    model, placed = adapted(backend)
    driver = build_engine(model, **{"max_model_len": 140, **BACKENDS[backend][1], **changes})
    driver.core.adapters.update(placed)
    return driver


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(2, 95), min_size=1, max_size=40),
        st.sampled_from(NAMES),
        st.sampled_from([0.0, 0.7]),
        st.integers(1, 25),
    ),
    min_size=2,
    max_size=7,
)
LIMITS = st.sampled_from([
    {},
    {"speculation": False, "max_num_batched_tokens": 17},
    {"enable_prefix_caching": False},
    # Room for one sequence and a bit: the others give way again and again.
    {"num_blocks": 18, "expected_output_len": 1},
])  # fmt: skip


def outcome(driver: Driver, name: str) -> Any:
    return driver.tokens[name], driver.logprobs[name], driver.finished[name], driver.prompt_logprobs[name]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=EXPLORED or 3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests=REQUESTS, limits=LIMITS)
def test_an_answer_depends_on_its_request_and_its_adapter_alone(
    backend: str, requests: list[Any], limits: dict[str, Any]
) -> None:
    together = build(backend, **limits)
    for number, (prompt, adapter, temperature, length) in enumerate(requests):
        wanted = {"temperature": temperature, "seed": number, "max_tokens": length}
        for driver in (together, alone := build(backend, speculation=False, enable_prefix_caching=False)):
            driver.add(str(number), prompt, adapter=adapter, logprobs=1, prompt_logprobs=0, **wanted)
        alone.run()
        requests[number] = outcome(alone, str(number))
        together.step()
    together.run()
    for number, expected in enumerate(requests):
        assert outcome(together, str(number)) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_requests_without_an_adapter_have_the_bits_of_an_engine_without_any(backend: str) -> None:
    plain = build_engine(tiny_model(**BACKENDS[backend][0]), max_model_len=140, **BACKENDS[backend][1])
    mixed = build(backend)
    for driver in (plain, mixed):
        driver.add("own", [5, 9, 3] * 7, max_tokens=20, logprobs=2, prompt_logprobs=1)
    mixed.add("other", [5, 9, 3] * 7, max_tokens=20, adapter="a", logprobs=2, prompt_logprobs=1)
    plain.run()
    mixed.run()
    assert outcome(mixed, "own") == outcome(plain, "own")
    assert mixed.prompt_logprobs["other"] != mixed.prompt_logprobs["own"]


def test_cached_prefixes_belong_to_one_adapter(tmp_path: Path) -> None:
    model, table = fresh("compiled")
    placed = {name: table.put(table.prepare(folder(name))) for name in "ab"}
    driver = build_engine(model)
    driver.core.adapters.update(placed)
    prompt, number = [7, 8, 9, 4] * 10, 0
    answers: dict[Any, Any] = {}

    def cached(adapter: str | None, salt: str | None = None) -> int:
        nonlocal number
        number += 1
        name = f"r{number}"
        driver.add(name, prompt, adapter=adapter, cache_salt=salt, max_tokens=8, ignore_eos=True)
        driver.run()
        answers.setdefault(adapter, driver.tokens[name])
        assert driver.tokens[name] == answers[adapter]
        return driver.cached[name]

    assert [cached(name) for name in NAMES] == [0, 0, 0]
    assert all(cached(name) > 0 for name in NAMES)
    assert cached("a", "salt") == 0
    assert cached("a", "salt") > 0
    table.remove(placed["a"])
    driver.core.adapters["a"] = again = table.put(table.prepare(folder("c")))
    assert again.slot == placed["a"].slot
    del answers["a"]
    assert cached("a") == 0, "other weights under the same name and in the same slot"
    assert cached(None) > 0


def engine_of(
    backend: str = "compiled", capacity: int = 2, **changes: Any
) -> tuple[NativeEngine, AdapterTable]:
    model, table = fresh(backend, capacity)
    limits = config(**{**BACKENDS[backend][1], **changes})
    runner = ModelRunner(
        model, num_blocks=limits.num_blocks, block_size=limits.block_size, device=torch.device("cpu")
    )
    return NativeEngine(limits, runner, model="tiny", eos_token_ids=EOS, adapters=table), table


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[tuple[NativeEngine, AdapterTable]]:
    engine, table = engine_of(**options)
    await engine.start()
    try:
        yield engine, table
    finally:
        await engine.stop()


NUMBERS = iter(range(10**6))


def request(adapter: str | None, length: int = 6, **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=str(next(NUMBERS)),
        prompt_token_ids=[4, 5, 6, 9, 11],
        adapter=adapter,
        sampling=SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True),
        **fields,
    )


async def answer(engine: NativeEngine, adapter: str | None, length: int = 6) -> list[int]:
    chunks = [chunk async for chunk in engine.generate(request(adapter, length))]
    assert chunks[-1].finish_reason == "length", chunks[-1]
    return [token for chunk in chunks for token in chunk.token_ids]


async def test_adapters_are_loaded_and_unloaded_while_requests_run() -> None:
    async with started() as (engine, table):
        assert "adapters" in engine.info.features
        plain = await answer(engine, None, 40)
        running = asyncio.ensure_future(answer(engine, None, 200))
        await asyncio.gather(*(engine.load_adapter(name, folder(name)) for name in "ab"))
        with pytest.raises(RefusedRequestError, match=r"room for 2 adapters \(--max-loras\)"):
            await engine.load_adapter("c", folder("c"))
        with pytest.raises(RefusedRequestError, match="named 'a' is loaded"):
            await engine.load_adapter("a", folder("a"))
        with pytest.raises(RefusedRequestError, match="'c'") as refused:
            await answer(engine, "c")
        assert refused.value.param == "model"
        answers = await asyncio.gather(*(answer(engine, name, 40) for name in ("a", None, "b")))
        assert answers[1] == plain
        assert len({str(found) for found in answers}) == 3
        assert (await running)[:40] == plain
        await engine.unload_adapter("unknown")
        await engine.unload_adapter("a")
        assert table.num_free == 1
        with pytest.raises(RefusedRequestError, match="'a'"):
            await answer(engine, "a")
        assert await answer(engine, "b", 40) == answers[2]
        await engine.load_adapter("a", folder("a"))
        assert await answer(engine, "a", 40) == answers[0]


async def test_an_adapter_stays_until_its_last_request_has_ended() -> None:
    async with started(max_model_len=200) as (engine, table):
        await engine.load_adapter("a", folder("a"))
        expected = await answer(engine, "a", 150)
        running = asyncio.ensure_future(answer(engine, "a", 150))
        while not engine.stats().num_running:
            await asyncio.sleep(0.001)
        unloading = asyncio.ensure_future(engine.unload_adapter("a"))
        await asyncio.sleep(0)
        with pytest.raises(RefusedRequestError, match="'a'"):
            await answer(engine, "a")
        # Another one of this name does not touch the one that leaves.
        await engine.load_adapter("a", folder("b"))
        other = await answer(engine, "a", 150)
        assert await running == expected != other
        await unloading
        assert (await answer(engine, "a", 150), table.num_free) == (other, 1)


async def test_a_client_that_leaves_frees_its_adapter() -> None:
    """At once or in the middle: the engine's thread has forgotten the request before the weights go."""
    async with started(max_model_len=200) as (engine, table):
        for steps in (0, 1, 3):
            await engine.load_adapter("a", folder("a"))
            prepared = next(iter(table._placed.values()))
            weights = weakref.ref(prepared.parts[0][1][0].data)
            stream = engine.generate(request("a", 190))
            first: TokenChunk = await anext(stream)
            assert first.finish_reason is None
            for _ in range(steps):
                await anext(stream)
            unloading = asyncio.ensure_future(engine.unload_adapter("a"))
            await asyncio.sleep(0)
            assert not unloading.done()
            await stream.aclose()
            await unloading
            del prepared
            for _ in range(2000):
                if weights() is None:
                    break
                # The thread that read the adapter may still hold it.
                await asyncio.sleep(0.001)
            assert weights() is None, "the memory is given back"
            assert (table.num_free, table.num_bytes) == (2, 0)
        assert await answer(engine, None, 3)


async def test_an_adapter_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": true}'
    )
    async with started() as (engine, table):
        with pytest.raises(RefusedRequestError, match="use_dora"):
            await engine.load_adapter("a", tmp_path)
        with pytest.raises(RefusedRequestError, match="'a'"):
            await answer(engine, "a")
        assert table.num_free == 2
        await engine.load_adapter("a", folder("a"))


async def test_an_engine_that_ends_says_so_to_those_who_wait() -> None:
    engine, _ = engine_of(max_model_len=200)
    with pytest.raises(EngineClosedError):
        await engine.load_adapter("a", folder("a"))
    await engine.start()
    await engine.load_adapter("a", folder("a"))
    stream = engine.generate(request("a", 190))
    await anext(stream)
    unloading = asyncio.ensure_future(engine.unload_adapter("a"))
    await asyncio.sleep(0)
    await engine.stop()
    assert (await anext(stream)).finish_reason in (None, "abort")
    await stream.aclose()
    with pytest.raises(EngineClosedError):
        await unloading


async def test_an_engine_without_places_refuses_adapters() -> None:
    limits = config()
    runner = ModelRunner(tiny_model(), num_blocks=256, block_size=8, device=torch.device("cpu"))
    engine = NativeEngine(limits, runner, model="tiny", eos_token_ids=EOS)
    with pytest.raises(RefusedRequestError, match="--lora-dir"):
        await engine.load_adapter("a", folder("a"))
    await engine.unload_adapter("a")
    with pytest.raises(RefusedRequestError, match="adapters"):
        await anext(engine.generate(request("a")))
