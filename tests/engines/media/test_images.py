"""Laws of engines that read images: through the server they give the tokens that transformers' generate gives.

The models are random. What is compared with are the family's processor and `generate` of transformers, called as its
documentation does.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.servers.asgi import serving
from support.weights.vision import FAMILIES, FURTHER, data_url, make_model, picture

from plumbline.answer.road.prompt_tokens import PromptRenderer, prompt_tokens
from plumbline.answer.turn import ChatPrompt, Message
from plumbline.engines.transformers.loading import TransformersError
from plumbline.engines.transformers.vision import load_processor
from plumbline.engines.vllm.media import MediaRenderer
from plumbline.port.engine import GenerateRequest, MediaItem, MediaPrompt, SamplingParams
from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.settings import Settings

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
torch.set_num_threads(1)

PROMPTS: list[list[Any]] = [
    ["hello ", picture(40, 30, 1), " what is this?"],
    [picture(90, 120, 2), "and", picture(28, 28, 3)],
    ["no picture here"],
    # The same tokens as the first, with another image: what is cached of one is not of the other.
    ["hello ", picture(40, 30, 7), " what is this?"],
    [picture(200, 60, 4), picture(60, 200, 5), picture(31, 57, 6), "three <image> <|image_pad|>"],
]
READABLE = [[part for part in parts if part != PROMPTS[-1][-1]] for parts in PROMPTS]
"""Those without a text that spells a placeholder."""
STEPS = 8


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of each family."""
    return make_model(request.param, tmp_path_factory.mktemp(request.param))


def _why_not_vllm() -> str:
    """Return why vLLM reads no images here: its model files need a torchvision that can be imported."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed"
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # Builds for another torch raise errors of many kinds.
        return f"vLLM's models of images need torchvision: {error}"
    return ""


ENGINES = [
    pytest.param({"engine": "plumbline"}, id="plumbline"),
    pytest.param({"engine": "plumbline", "compile": "off"}, id="plumbline-torch"),
    pytest.param({"engine": "transformers"}, id="transformers"),
    pytest.param(
        {"engine": "vllm", "engine_args": ("enforce_eager=true",), "kv_cache_bytes": 1 << 30},
        id="vllm",
        marks=pytest.mark.skipif(bool(_why_not_vllm()), reason=_why_not_vllm() or "it does"),
    ),
]
"""The engines that read images."""


def chat(parts: list[Any]) -> list[dict[str, Any]]:
    """A conversation as chat takes it."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


@cache
def _reference(folder: Path) -> tuple[Any, Any]:
    """The model and the processor of transformers."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    return model, load_processor(folder, model.config)


def generated(folder: Path, parts: list[Any]) -> tuple[int, list[int]]:
    """The number of prompt tokens and the greedy tokens, by transformers alone."""
    model, processor = _reference(folder)
    content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in parts]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        chat_template=(folder / "chat_template.jinja").read_text("utf-8"),
    )
    # A text that spells a placeholder is text for our server; here it would be one.
    text = text.replace("<image> <|image_pad|>", "")
    images = [Image.open(io.BytesIO(part)) for part in parts if not isinstance(part, str)]
    # Llama 4's processor returns bfloat16.
    inputs = processor(images=images or None, text=[text], return_tensors="pt").to(torch.float32)
    output = model.generate(**inputs, do_sample=False, max_new_tokens=STEPS)
    size = inputs["input_ids"].shape[1]
    return size, output[0, size:].tolist()


def body(parts: list[Any], **more: Any) -> dict[str, Any]:
    """A greedy request that shows its tokens."""
    return {
        "model": "vision",
        "messages": chat(parts),
        "temperature": 0,
        "max_tokens": STEPS,
        "return_token_ids": True,
        **more,
    }


def loaded(folder: Path, changes: dict[str, Any]) -> ServedModel:
    """The model of a folder."""
    options = {
        "models": (("", str(folder)),),
        "served_model_names": ("vision",),
        # vLLM has the device of its build, and refuses the option.
        "device": "auto" if changes.get("engine") == "vllm" else "cpu",
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": 4,
        **changes,
    }
    return load(Settings(**options))


@pytest.mark.parametrize("options", ENGINES)
def test_greedy_tokens_are_those_of_generate(folder: Path, options: dict[str, Any]) -> None:
    compare(folder, options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "engine"), [(family, engine) for family in FURTHER for engine in ("transformers", "plumbline")]
)
def test_further_families_answer_as_generate_does(family: str, engine: str, tmp_path: Path) -> None:
    if family in ("llama4", "mistral3"):
        pytest.importorskip("torchvision", reason="the processor of transformers needs torchvision")
    compare(make_model(family, tmp_path / family), {"engine": engine})


@cache
def _expected(folder: Path) -> list[tuple[int, list[int]]]:
    return [generated(folder, parts) for parts in READABLE]


def compare(folder: Path, options: dict[str, Any]) -> None:
    """Compare all prompts with transformers' generate."""
    prompts, expected = READABLE, _expected(folder)

    async def scenario() -> None:
        model = loaded(folder, options)
        async with serving(model) as server:
            # Alone, then all at once and each twice: images of others and what is kept of them change nothing.
            alone = [await server.post("/v1/chat/completions", body(parts)) for parts in prompts]
            both = [server.post("/v1/chat/completions", body(parts)) for parts in [*prompts, *prompts]]
            together = await asyncio.gather(*both)
        for answers in (alone, together[: len(prompts)], together[len(prompts) :]):
            for answer, (size, tokens) in zip(answers, expected, strict=True):
                assert answer.status == 200, answer.body
                assert answer.json["choices"][0]["token_ids"] == tokens
                assert answer.json["usage"]["prompt_tokens"] == size == len(answer.json["prompt_token_ids"])

    asyncio.run(scenario())


@pytest.mark.skipif(bool(_why_not_vllm()), reason=_why_not_vllm() or "it does")
def test_vllm_processes_the_files_of_a_prompt_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processed: list[MediaPrompt] = []
    process = MediaRenderer._process

    async def counted(renderer: MediaRenderer, prompt: MediaPrompt) -> dict[str, Any]:
        processed.append(prompt)
        return await process(renderer, prompt)

    monkeypatch.setattr(MediaRenderer, "_process", counted)

    async def scenario() -> None:
        engine = {"engine": "vllm", "engine_args": ("enforce_eager=true",), "kv_cache_bytes": 1 << 30}
        async with serving(loaded(folder, engine)) as server:
            answers = [await server.post("/v1/chat/completions", body(PROMPTS[0], n=2)) for _ in range(2)]
        assert [len(answer.json["choices"]) for answer in answers] == [2, 2]

    asyncio.run(scenario())

    assert len(processed) == 1


def test_our_engine_encodes_a_picture_once_for_all_choices(folder: Path) -> None:
    async def scenario() -> None:
        model = loaded(folder, {"engine": "plumbline"})
        images = model.engine._images  # type: ignore[attr-defined]
        encode, files = images._encode, list[bytes]()

        def counted(data: bytes, is_wanted: Any) -> Any:
            files.append(data)
            return encode(data, is_wanted)

        images._encode = counted
        async with serving(model) as server:
            answers = [
                await server.post("/v1/chat/completions", body(PROMPTS[1], n=2, **more))
                for more in ({}, {"cache_salt": "other"})
            ]
        found = [[choice["token_ids"] for choice in answer.json["choices"]] for answer in answers]
        assert found[0][0] == found[0][1] == found[1][0] == found[1][1]
        assert len(files) == 4, "two pictures for each salt"

    asyncio.run(scenario())


@pytest.mark.parametrize("options", ENGINES)
def test_text_that_spells_a_placeholder_is_text(folder: Path, options: dict[str, Any]) -> None:
    async def scenario() -> None:
        model = loaded(folder, options)
        async with serving(model) as server:
            answer = await server.post("/v1/chat/completions", body(PROMPTS[-1]))
            assert answer.status == 200, answer.body
            for text in ("<image>", "<|image_pad|>"):
                if text not in model.renderer.tokenizer.added:
                    continue
                completion = {"model": "vision", "prompt": f"a {text}", "max_tokens": 2}
                answer = await server.post("/v1/completions", completion)
                assert (answer.status, answer.json["error"]["param"]) == (400, "prompt")

    asyncio.run(scenario())


@pytest.mark.parametrize("options", ENGINES)
def test_odd_images_and_long_prompts_leave_the_engine_alive(folder: Path, options: dict[str, Any]) -> None:
    async def scenario() -> None:
        model = loaded(folder, options)
        async with serving(model) as server:
            thin = await server.post("/v1/chat/completions", body([picture(199, 1)]))
            assert thin.status == 200, thin.body
            long = await server.post("/v1/chat/completions", body(["a" * 1100, picture(9, 9)]))
            assert long.json["error"]["code"] == "context_length_exceeded"
            assert (await server.post("/v1/chat/completions", body(PROMPTS[0]))).status == 200
            assert model.engine.stats().num_running == 0

    asyncio.run(scenario())


def test_an_image_that_the_processor_refuses_is_the_fault_of_its_request(folder: Path) -> None:
    async def scenario() -> None:
        model = loaded(folder, {"engine": "transformers"})
        images = model.engine._media  # type: ignore[attr-defined]
        process = images._process

        def broken(items: Any) -> Any:
            raise ValueError("no such colour")

        async with serving(model) as server:
            images._process = broken
            answer = await server.post("/v1/chat/completions", body(PROMPTS[0]))
            assert (answer.status, answer.json["error"]["param"]) == (400, "messages")
            assert "no such colour" in answer.json["error"]["message"]
            images._process = process
            assert (await server.post("/v1/chat/completions", body(PROMPTS[0]))).status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("engine", ["plumbline", "transformers"])
def test_beams_look_at_the_images(folder: Path, engine: str) -> None:
    async def scenario() -> None:
        async with serving(loaded(folder, {"engine": engine})) as server:
            found = set()
            for seed in (2, 8):
                parts = ["hello", picture(90, 120, seed)]
                answer = await server.post("/v1/chat/completions", body(parts, use_beam_search=True, n=2))
                assert answer.status == 200, answer.body
                found.add(str([choice["token_ids"] for choice in answer.json["choices"]]))
            assert len(found) == 2, "the prompts differ in their images only"

    asyncio.run(scenario())


def test_the_answer_depends_on_the_image(folder: Path) -> None:
    """What the other laws compare would be equal for a model that does not look."""
    answers = {tuple(generated(folder, ["x", picture(56, 56, seed)])[1]) for seed in range(4)}
    assert len(answers) > 1


@given(st.lists(st.integers(0, STEPS - 1), max_size=4))
@settings(max_examples=EXPLORED or 4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_paused_request_reads_its_images_again(folder: Path, pauses: list[int]) -> None:
    """A pause, like a preemption, drops what was computed, and what was kept of its images may be gone by then."""
    model, parts, (_, expected) = _kept(folder)
    engine = model.engine
    items = [MediaItem(media_type="image/png", data=part) for part in parts if not isinstance(part, str)]
    pieces = [part if isinstance(part, str) else items.pop(0) for part in parts]
    prompt = ChatPrompt(messages=(Message(role="user", content="", parts=tuple(pieces)),))
    found = asyncio.run(prompt_tokens(engine, PromptRenderer(model.renderer), prompt, 1024, ""))
    core = engine._keeper.core  # type: ignore[attr-defined]
    core.add(
        GenerateRequest(
            request_id="r",
            prompt_token_ids=found.token_ids,
            media=found.media,
            sampling=SamplingParams(temperature=0.0, max_tokens=STEPS),
        )
    )
    output: list[int] = []
    while core.has_work:
        for _, chunk in core.step():
            output += chunk.token_ids
        if len(output) in pauses:
            engine._media._kept.clear()  # type: ignore[attr-defined]
            core.pause("r")
            assert not core.has_work
            core.resume("r")
            pauses = [place for place in pauses if place != len(output)]
    assert output == expected


@cache
def _kept(folder: Path) -> tuple[ServedModel, list[Any], tuple[int, list[int]]]:
    return loaded(folder, {"engine": "transformers"}), PROMPTS[1], generated(folder, PROMPTS[1])


@pytest.mark.parametrize("engine", ["plumbline", "transformers"])
def test_a_conversation_of_responses_looks_at_all_its_images(
    folder: Path, tmp_path: Path, engine: str
) -> None:
    first, second = PROMPTS[0], PROMPTS[1]

    def content(parts: list[Any]) -> list[dict[str, Any]]:
        return [
            {"type": "input_text", "text": part}
            if isinstance(part, str)
            else {"type": "input_image", "image_url": data_url(part), "detail": "high"}
            for part in parts
        ]

    async def scenario() -> None:
        model = loaded(folder, {"engine": engine})
        async with serving(model, store=str(tmp_path / "kept.db")) as server:
            common = {"model": "vision", "temperature": 0, "max_output_tokens": 16, "store": True}
            items = [{"role": "user", "content": content(first)}]
            one = await server.post("/v1/responses", {**common, "input": items})
            assert one.status == 200, one.body
            more = {"input": [{"role": "user", "content": content(second)}]}
            continued = await server.post(
                "/v1/responses", {**common, **more, "previous_response_id": one.json["id"]}
            )
            items += [*one.json["output"], *more["input"]]
            whole = await server.post("/v1/responses", {**common, "input": items})
            assert continued.json["output"][0]["content"] == whole.json["output"][0]["content"]
            # Ours has found more of the second prompt in its cache.
            for count in ("input_tokens", "output_tokens", "total_tokens"):
                assert continued.json["usage"][count] == whole.json["usage"][count]

    asyncio.run(scenario())


def test_what_cannot_be_loaded_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    for change, message in (
        ({"quantization_config": {"quant_method": "hqq"}}, "pip install hqq"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
            "pip install bitsandbytes",
        ),
        ({"model_type": "unheard_of", "auto_map": {"AutoConfig": "code.Config"}}, "--trust-remote-code"),
    ):
        copy = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(folder, copy)
        config = json.loads((copy / "config.json").read_text("utf-8"))
        (copy / "config.json").write_text(json.dumps(config | change), "utf-8")
        with pytest.raises(TransformersError, match=message):
            loaded(copy, {"engine": "transformers"})


def test_code_of_the_folder_runs_only_where_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = make_model("llava", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own_code.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    mark = tmp_path / "it ran"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    code += "from transformers import PreTrainedConfig\n\n"
    code += "class OwnConfig(PreTrainedConfig):\n    model_type = 'own'\n"
    (folder / "own_code.py").write_text(code, "utf-8")
    with pytest.raises(TransformersError, match="--trust-remote-code"):
        loaded(folder, {"engine": "transformers"})
    assert not mark.exists()
    with pytest.raises(TransformersError):  # The code has no model.
        loaded(folder, {"engine": "transformers", "trust_remote_code": True})
    assert mark.exists()
