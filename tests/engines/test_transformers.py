"""Laws of the transformers engine: it generates as transformers does and follows the port."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from plumbline.engines.constraints.grammar import GrammarVocabulary, LarkCompiler
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.models import load_model
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.threaded import threaded_engine as threaded
from plumbline.engines.transformers.engine import TransformersEngine
from plumbline.engines.transformers.loading import TransformersError
from plumbline.port.engine import (
    Dry,
    EngineClosedError,
    EngineFullError,
    GenerateRequest,
    Mirostat,
    RefusedRequestError,
    SamplerChain,
    SamplingParams,
    TokenChunk,
)

VOCAB, EOS, LIMIT = 120, 3, 96
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LIMIT,
        initializer_range=0.3,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=None,
    )
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def request(name: str, prompt: list[int], **sampling: Any) -> GenerateRequest:
    sampling = {"temperature": 0.0, "max_tokens": 20} | sampling
    return GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(**sampling))


async def collect(engine: Any, wanted: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunk in engine.generate(wanted)]


def tokens(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def _hf_model(engine: TransformersEngine) -> Any:
    """The transformers model inside, for tests that replace a part of it."""
    return engine._keeper.core._model  # type: ignore[attr-defined]


Scenario = Callable[[TransformersEngine], Coroutine[Any, Any, None]]


@pytest.fixture
def play(folder: Path) -> Callable[..., None]:
    """Run a coroutine against a started engine, and stop it afterwards."""

    def run(scenario: Scenario, **limits: int) -> None:
        async def main() -> None:
            loaded = TransformersEngine.from_folder(folder, model="tiny")
            engine = TransformersEngine(_hf_model(loaded), model="tiny", **limits)  # type: ignore[arg-type]
            await engine.start()
            try:
                await asyncio.wait_for(scenario(engine), 60)
            finally:
                await engine.stop()

        asyncio.run(main())

    return run


def test_tensors_that_fit_no_model_are_named(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A weight that is missing would be random, and one that is not used would be dropped in silence."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "extra": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    TransformersEngine.from_folder(tmp_path, model="tiny")
    assert "tensors of the checkpoint that are not used: extra" in caplog.messages
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TransformersError, match=r"lack tensors of this model: model\.norm\.weight"):
        TransformersEngine.from_folder(tmp_path, model="tiny")


def test_the_ends_are_those_of_all_files(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    added = [{"id": 7, "content": "<|im_end|>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}), "utf-8")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}<|im_end|>", "utf-8")
    assert TransformersEngine.from_folder(tmp_path, model="tiny").info.eos_token_ids == {EOS, 7}


PROMPTS = {"a": [5, 9, 77, 4], "b": [1], "c": [8, 8, 8, 20, 31, 40, 41]}


def test_greedy_tokens_are_those_of_generate(play: Any, folder: Path) -> None:
    """Alone and beside others."""
    model = LlamaForCausalLM.from_pretrained(folder)

    async def scenario(engine: TransformersEngine) -> None:
        results = await asyncio.gather(
            *(collect(engine, request(name, prompt)) for name, prompt in PROMPTS.items())
        )
        for prompt, chunks in zip(PROMPTS.values(), results, strict=True):
            expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0].tolist()
            assert prompt + tokens(chunks) == expected
            assert chunks[-1].finish_reason == ("stop" if expected[-1] == EOS else "length")
            assert all(chunk.finish_reason is None for chunk in chunks[:-1])

    play(scenario)


SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 4},
    {"temperature": 1.3, "seed": 5, "top_k": 12, "top_p": 0.8, "min_p": 0.02},
    {
        "temperature": 0.8,
        "seed": -9,
        "frequency_penalty": 0.7,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.2,
    },
    {"temperature": 1.0, "seed": 6, "logit_bias": {7: 5.0, 9: -100.0}, "logprobs": 3, "prompt_logprobs": 2},
    {"temperature": 2.0, "seed": 7, "allowed_token_ids": frozenset({EOS, 10, 11, 12}), "min_tokens": 9},
    {"temperature": 2.0, "seed": 8, "stop_token_ids": frozenset(range(40, 70)), "ignore_eos": True},
    {"max_tokens": 0, "prompt_logprobs": 1},
    {
        "temperature": 1.2,
        "seed": 9,
        "chain": SamplerChain(typical_p=0.7, dry=Dry(multiplier=2.0, allowed_length=0)),
    },
    {
        "seed": 10,
        "chain": SamplerChain(mirostat=Mirostat(version=2, tau=3.0), order=("penalties", "temperature")),
    },
    {
        "temperature": 1.5,
        "seed": 11,
        "bad_words": ((10,), (11, 12)),
        "logprobs": 2,
        "logprob_token_ids": (3, 90),
    },
]


@pytest.mark.long
@pytest.mark.parametrize("sampling", SAMPLED, ids=str)
def test_the_native_engine_gives_the_same_answer(play: Any, folder: Path, sampling: Any) -> None:
    """Two independent engines behind one port: the same tokens, reasons and logprobs for the same request."""

    async def scenario(reference: TransformersEngine) -> None:
        model = load_model(folder)
        config = EngineConfig(max_model_len=LIMIT, num_blocks=32, block_size=16)
        runner = ModelRunner(model, num_blocks=32, block_size=16, device=model.device)
        ours = NativeEngine(config, runner, model="tiny", eos_token_ids=model.description.eos_token_ids)
        await ours.start()
        try:
            for name, prompt in PROMPTS.items():
                wanted = request(name, prompt, **sampling)
                expected, found = await collect(reference, wanted), await collect(ours, wanted)
                assert tokens(found) == tokens(expected)
                assert found[-1].finish_reason == expected[-1].finish_reason
                for left, right in zip(found, expected, strict=True):
                    for entries in ("logprobs", "prompt_logprobs"):
                        compare(getattr(left, entries), getattr(right, entries))
        finally:
            await ours.stop()

    def compare(left: Any, right: Any) -> None:
        assert (left is None) == (right is None)
        for ours, theirs in zip(left or (), right or (), strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert ours.token_id == theirs.token_id
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
                assert ours.rank == theirs.rank
                assert [t for t, _ in ours.top] == [t for t, _ in theirs.top]

    play(scenario)


def test_concurrent_requests_do_not_touch_each_other(play: Any) -> None:
    """Seeded draws beside others are those of a request alone, with more requests than run at a time."""

    async def scenario(engine: TransformersEngine) -> None:
        wanted = [request(f"r{i}", [i + 5, 9], temperature=1.0, seed=i) for i in range(7)]
        alone = [tokens(await collect(engine, item)) for item in wanted]
        together = await asyncio.gather(*(collect(engine, item) for item in wanted))
        assert [tokens(chunks) for chunks in together] == alone
        assert len({tuple(answer) for answer in alone}) > 1

    play(scenario, max_num_running=3)


def endless(name: str) -> GenerateRequest:
    return request(name, [5, 9], max_tokens=None, ignore_eos=True)


async def idle(engine: TransformersEngine) -> None:
    while engine.stats().num_running or engine.stats().num_waiting:
        await asyncio.sleep(0.005)


def test_abort_ends_a_running_and_a_waiting_request(play: Any) -> None:
    """The stream ends with reason abort, and long before the context is full."""

    async def scenario(engine: TransformersEngine) -> None:
        running, waiting = engine.generate(endless("running")), engine.generate(endless("waiting"))
        assert (await anext(running)).finish_reason is None
        second = asyncio.ensure_future(anext(waiting))
        await asyncio.sleep(0)
        engine.abort("waiting")
        engine.abort("unknown")
        assert (await second).finish_reason == "abort"
        engine.abort("running")
        chunks = [chunk async for chunk in running]
        assert chunks[-1].finish_reason == "abort"
        assert len(tokens(chunks)) < LIMIT - 10
        await idle(engine)

    play(scenario, max_num_running=1)


def test_closing_the_iterator_frees_the_request(play: Any) -> None:
    async def scenario(engine: TransformersEngine) -> None:
        stream: AsyncGenerator[TokenChunk, None] = engine.generate(endless("closed"))
        await anext(stream)
        assert engine.stats().num_running == 1
        await stream.aclose()
        await idle(engine)
        assert engine.stats().generation_tokens < LIMIT - 10
        assert len(tokens(await collect(engine, request("closed", [5])))) > 0

    play(scenario)


def test_a_full_queue_is_refused_and_recovers(play: Any) -> None:
    async def scenario(engine: TransformersEngine) -> None:
        streams = [engine.generate(endless(f"r{i}")) for i in range(2)]
        pending = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        with pytest.raises(EngineFullError):
            await collect(engine, request("one too many", [5]))
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        engine.abort("r0")
        engine.abort("r1")
        for stream, first in zip(streams, pending, strict=True):
            if (await first).finish_reason is None:
                async for _ in stream:
                    pass
        assert (await collect(engine, request("now", [5])))[-1].finish_reason is not None

    play(scenario, max_num_running=1, max_num_waiting=1)


def test_generation_stops_at_the_end_of_the_context(play: Any) -> None:
    async def scenario(engine: TransformersEngine) -> None:
        chunks = await collect(engine, endless("long"))
        assert len(tokens(chunks)) == LIMIT - 2
        assert chunks[-1].finish_reason == "length"

    play(scenario)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (request("r", []), "no tokens"),
        (request("r", [VOCAB]), "token ids"),
        (request("r", [-1]), "token ids"),
        (request("r", [5] * LIMIT), "limit"),
        (request("r", [5], logit_bias={VOCAB: 1.0}), "logit_bias"),
        (request("r", [5], allowed_token_ids=frozenset()), "allowed_token_ids"),
    ],
)
def test_what_cannot_be_computed_is_refused(play: Any, wrong: dict[str, Any], message: str) -> None:
    async def scenario(engine: TransformersEngine) -> None:
        with pytest.raises(RefusedRequestError, match=message):
            await collect(engine, wrong)  # type: ignore[arg-type]
        assert (await collect(engine, request("r", [5])))[-1].finish_reason is not None

    play(scenario)


def test_a_failed_step_ends_its_request_only(play: Any) -> None:
    async def scenario(engine: TransformersEngine) -> None:
        forward = _hf_model(engine).forward

        def failing(input_ids: torch.Tensor, **rest: Any) -> Any:
            if input_ids[0, 0] == 66:
                raise RuntimeError("boom")
            return forward(input_ids=input_ids, **rest)

        _hf_model(engine).forward = failing
        bad, good = await asyncio.gather(
            collect(engine, request("bad", [66])), collect(engine, request("good", [5]))
        )
        assert bad[-1].finish_reason == "error"
        assert bad[-1].error
        assert "boom" not in bad[-1].error
        assert good[-1].finish_reason in ("stop", "length")

    play(scenario)


def test_after_stop_nothing_is_taken_and_what_ran_was_aborted(folder: Path) -> None:
    async def main() -> None:
        engine = TransformersEngine.from_folder(folder, model="tiny")
        await engine.start()
        stream = engine.generate(endless("r"))
        await anext(stream)
        rest = asyncio.ensure_future(anext_to_the_end(stream))
        await engine.stop()
        await engine.stop()
        assert (await rest)[-1].finish_reason == "abort"
        assert not engine.stats().alive
        with pytest.raises(EngineClosedError):
            await collect(engine, request("late", [5]))

    async def anext_to_the_end(stream: AsyncGenerator[TokenChunk, None]) -> list[TokenChunk]:
        return [chunk async for chunk in stream]

    asyncio.run(main())


def test_answers_under_a_grammar_match_the_native_engine(folder: Path) -> None:
    """Two engines, one matcher: greedy tokens under a grammar are the same, and they are in it."""
    table = [bytes([token]) if token >= 32 else b"" for token in range(VOCAB)]
    ends = frozenset({EOS})
    known = GrammarVocabulary(table, ends, ends, lambda text: list(text.encode()))
    model = load_model(folder, dtype=torch.float32, device=torch.device("cpu"))
    config = EngineConfig(
        max_model_len=LIMIT, num_blocks=64, block_size=8, max_num_seqs=8, max_num_batched_tokens=64
    )
    runner = ModelRunner(model, num_blocks=64, block_size=8, device=torch.device("cpu"))
    grammars = ['start: ("(" /[0-9]{1,4}/ ")"){1,3}', "start: /[a-f]{3,9}/", 'start: "GO"']

    async def main() -> None:
        reference = TransformersEngine.from_folder(
            folder, model="tiny", dtype=torch.float32, grammars=lambda _: LarkCompiler(known)
        )
        ours = NativeEngine(config, runner, model="tiny", eos_token_ids=ends, grammars=LarkCompiler(known))
        found: list[list[list[int]]] = []
        for engine in (reference, ours):
            await engine.start()
            assert "grammar" in engine.info.features
            wanted = [
                request(f"{name}{number}", prompt, grammar=grammar, max_tokens=40, min_tokens=4)
                for name, prompt in PROMPTS.items()
                for number, grammar in enumerate(grammars)
            ]
            answers = await asyncio.gather(*(collect(engine, each) for each in wanted))
            assert all(chunks[-1].finish_reason == "stop" for chunks in answers)
            found.append([tokens(chunks) for chunks in answers])
            await engine.stop()
        assert found[0] == found[1]
        texts = [bytes(token for token in answer if token != EOS).decode() for answer in found[0]]
        assert all(text == "GO" for text in texts[2::3])
        assert all(re.fullmatch(r"[a-f]{3,9}", text) for text in texts[1::3])

    asyncio.run(main())


def test_without_a_compiler_a_grammar_is_refused(play: Any) -> None:
    async def scenario(engine: TransformersEngine) -> None:
        assert "grammar" not in engine.info.features
        with pytest.raises(RefusedRequestError):
            await engine.check_grammar('start: "a"')
        with pytest.raises(RefusedRequestError):
            await collect(engine, request("a", [5], grammar='start: "a"'))

    play(scenario)


def test_a_request_that_nobody_reads_is_paused_and_goes_on_with_the_same_tokens(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded, "_UNREAD_PAUSES", 8)
    monkeypatch.setattr(threaded, "_UNREAD_RESUMES", 2)

    async def scenario(engine: TransformersEngine) -> None:
        wanted = tokens(await collect(engine, request("a", [5, 6], max_tokens=60, ignore_eos=True)))
        stream = engine.generate(request("b", [5, 6], max_tokens=60, ignore_eos=True))
        found = [await anext(stream)]
        while engine.stats().num_running:
            await asyncio.sleep(0.001)
        assert engine.stats().generation_tokens < 120
        found += [chunk async for chunk in stream]
        assert tokens(found) == wanted

    play(scenario)
