"""Laws of LoRA adapters through the server: tokens are those of the model with the request's adapter merged into it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from support.servers.asgi import Server, serving
from support.servers.pocket import text_model
from support.weights.adapters import merge, write_adapter
from support.weights.engines import prompts

from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

STEPS = 10
PROMPTS = prompts(3)


def adapter(folder: Path, seed: int, rank: int = 4) -> Path:
    """Write a random adapter of the pocket model's attention."""
    return write_adapter(folder, text_model(), ("q_proj", "v_proj"), rank=rank, alpha=2 * rank, seed=seed)


@torch.inference_mode()
def merged_tokens(adapter: Path | None) -> list[list[int]]:
    """The greedy tokens of each prompt, by transformers, with an adapter merged into the weights."""
    model = text_model()
    if adapter is not None:
        merge(model, adapter)
    found = []
    for prompt in PROMPTS:
        output = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=STEPS, eos_token_id=None, pad_token_id=0
        )
        found.append(output[0, len(prompt) :].tolist())
    return found


async def tokens(server: Server, model: str, prompt: list[int]) -> list[int]:
    """The greedy tokens of a request."""
    body: dict[str, Any] = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": STEPS}
    answer = await server.post("/v1/completions", {**body, "ignore_eos": True, "return_token_ids": True})
    assert answer.status == 200, answer.body
    found: list[int] = answer.json["choices"][0]["token_ids"]
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "plumbline": {},
    "vllm": {"engine_args": ("enforce_eager=true",), "kv_cache_bytes": 1 << 30},
}
"""By engine."""


def test_an_adapter_changes_the_answer_to_a_short_prompt(tmp_path: Path) -> None:
    """The step that the start measures comes before any request, and must know of adapters."""
    settings = Settings(
        served_model_names=("pocket",),
        engine="plumbline",
        device="cpu",
        dtype="float32",
        loras=(("a", str(adapter(tmp_path / "a", 0))),),
    )

    async def scenario() -> None:
        async with serving(load(settings), loras=settings.loras) as server:
            assert await tokens(server, "a", [5, 6, 7]) != await tokens(server, "pocket", [5, 6, 7])

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.parametrize("engine", OPTIONS)
def test_tokens_are_those_of_merged_weights_in_any_batch(engine: str, tmp_path: Path) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
    adapters = {name: adapter(tmp_path / name, seed) for seed, name in enumerate("abc")}
    adapter(tmp_path / "wide", 9, rank=64)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "adapter_config.json").write_text('{"r": 4}', "utf-8")
    expected = {"pocket": merged_tokens(None)} | {n: merged_tokens(adapters[n]) for n in adapters}
    assert len({str(found) for found in expected.values()}) == 4, "each adapter changes the answers"
    settings = Settings(
        served_model_names=("pocket",),
        engine=engine,  # type: ignore[arg-type]
        device="auto" if engine == "vllm" else "cpu",
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=32,
        loras=(("a", str(adapters["a"])),),
        lora_dir=str(tmp_path),
        max_loras=2,
        **OPTIONS[engine],
    )

    async def change(server: Server, operation: str, **body: str) -> int:
        return (await server.post(f"/v1/{operation}_lora_adapter", body)).status

    async def compare(server: Server, *names: str) -> None:
        asked = [(name, at) for at in range(len(PROMPTS)) for name in names]
        answers = await asyncio.gather(*(tokens(server, name, PROMPTS[at]) for name, at in asked))
        for (name, at), answer in zip(asked, answers, strict=True):
            assert answer == expected[name][at], (name, at)

    async def scenario() -> None:
        async with serving(
            load(settings), loras=settings.loras, lora_dir=settings.lora_dir, max_loras=2
        ) as server:
            await compare(server, "pocket")
            await compare(server, "a")
            # Requests of the model that run while the first adapters come are not touched by them.
            running = asyncio.ensure_future(compare(server, "pocket", "a"))
            assert await change(server, "load", lora_name="b", lora_path="b") == 200
            await running
            await compare(server, "pocket", "a", "b")
            assert await change(server, "load", lora_name="c", lora_path="c") == 400, "there is room for two"
            running = asyncio.ensure_future(compare(server, "b"))
            await asyncio.sleep(0.05)
            assert await change(server, "unload", lora_name="b") == 200
            await running
            for path in ("wide", "broken"):
                assert await change(server, "load", lora_name="c", lora_path=path) == 400
            # Another adapter under a name that was used: nothing is left of the first one.
            expected["b"] = expected["c"]
            assert await change(server, "load", lora_name="b", lora_path="c") == 200
            await compare(server, "b", "pocket", "a")
            assert (await server.get("/health")).status == 200

    asyncio.run(scenario())
