"""Fields that change how the prompt is made, over HTTP.

Laws:
    1. `add_special_tokens` and `add_bos_token` decide about the sequence start, in every operation that takes them, and
       it never comes twice.
    2. `input_ids` are the prompt, unchanged.
    3. A request's own chat template renders the messages if the operator allows that, else it is a 400.
    4. `/tokenizer_info` is the configuration of the served tokenizer with the served template.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support.models import CHATML, TOKENIZER, byte_level_definition, scripted, served
from support.servers.asgi import serving

from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

BOS = TOKENIZER.added["<|endoftext|>"]
USER = [{"role": "user", "content": "hi"}]
CHAT = {"model": "test-model", "messages": USER, "max_tokens": 3}
TEXT = {"model": "test-model", "prompt": "hi", "max_tokens": 3}


def with_sequence_start() -> Renderer:
    """The test tokenizer, which begins prompts with `<|endoftext|>`."""
    definition = byte_level_definition()
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [BOS], "tokens": ["<|endoftext|>"]}
        },
    }  # fmt: skip
    tokenizer = TextTokenizer(definition, config={"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"})
    return Renderer(tokenizer, ChatTemplate(CHATML, eos_token="<|im_end|>"))


class Recorded:
    """Keeps the prompts that reach the engine."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    def __call__(self, request: Any) -> Any:
        self.prompts.append(list(request.prompt_token_ids))
        return iter(())


DEFAULTS = [("/v1/chat/completions", CHAT, False), ("/v1/completions", TEXT, True)]


@pytest.mark.parametrize(("path", "body", "default"), DEFAULTS)
@pytest.mark.parametrize("field", ["add_special_tokens", "add_bos_token"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_sequence_start_is_the_clients_choice(
    path: str, body: dict[str, Any], default: bool, field: str, stream: bool
) -> None:
    seen = Recorded()
    async with serving(served(scripted(seen), renderer=with_sequence_start())) as server:
        for value in (None, True, False):
            answer = await server.post(path, {**body, "stream": stream, field: value})
            assert answer.status == 200, answer.body

    starts = [prompt[:1] == [BOS] for prompt in seen.prompts]
    assert starts == [default, True, False]
    assert all(BOS not in prompt[1:] for prompt in seen.prompts)


@pytest.mark.parametrize(("path", "body"), [row[:2] for row in DEFAULTS])
async def test_contradicting_fields_are_refused(path: str, body: dict[str, Any]) -> None:
    async with serving(served(scripted())) as server:
        answer = await server.post(path, {**body, "add_special_tokens": True, "add_bos_token": False})

    assert (answer.status, answer.error["param"]) == (400, "add_bos_token")


MISUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "add_bos_token": ({"input_ids": [5], "add_bos_token": True}, "add_special_tokens", "add_bos_token"),
    "template_vars": ({"template_vars": {"tools": []}}, "chat_template_kwargs", "template_vars.tools"),
    "allowed_tokens": ({"allowed_tokens": [5, 10**6]}, "allowed_token_ids", "allowed_tokens[1]"),
    "typical": ({"typical": 0.5}, "typical_p", "typical"),
}
"""A field, what is wrong with it, its name in other requests, and what the error names."""


@pytest.mark.parametrize("name", MISUSED)
@pytest.mark.parametrize("lenient", [False, True])
async def test_an_error_names_the_field_as_the_client_spelled_it(name: str, lenient: bool) -> None:
    fields, ours, named = MISUSED[name]
    renamed = {ours if key == name else key: value for key, value in fields.items()}
    async with serving(served(scripted()), lenient=lenient) as server:
        theirs, both, known = [
            (await server.post("/v1/chat/completions", {**CHAT, **sent})).error
            for sent in (fields, {**renamed, **fields}, renamed)
        ]
    assert theirs["param"] == named
    assert both == known
    assert theirs == {**known, "param": named, "message": known["message"].replace(f"'{ours}", f"'{name}")}


@pytest.mark.parametrize(("body", "default"), [({"prompt": "hi"}, True), ({"messages": USER}, False)])
async def test_tokenize_adds_the_sequence_start_as_generation_does(
    body: dict[str, Any], default: bool
) -> None:
    async with serving(served(scripted(), renderer=with_sequence_start())) as server:
        found = [
            (await server.post("/tokenize", {**body, "add_special_tokens": value})).json["tokens"]
            for value in (None, True, False)
        ]

    assert [tokens[0] == BOS for tokens in found] == [default, True, False]
    assert found[1] == [BOS, *found[2]]


async def test_a_prompt_that_begins_with_the_sequence_start_gets_another_one_as_in_transformers() -> None:
    body = {"prompt": "<|endoftext|>a"}
    async with serving(served(scripted(), renderer=with_sequence_start())) as server:
        tokens = (await server.post("/tokenize", body)).json["tokens"]
        alone = (await server.post("/tokenize", {**body, "add_special_tokens": False})).json["tokens"]

    assert tokens == [BOS, *alone]
    assert alone[0] == BOS


@pytest.mark.parametrize("stream", [False, True])
async def test_input_ids_are_the_prompt(stream: bool) -> None:
    seen = Recorded()
    ids = TOKENIZER.encode_text("rendered elsewhere")
    async with serving(served(scripted(seen))) as server:
        answer = await server.post("/v1/chat/completions", {**CHAT, "input_ids": ids, "stream": stream})
        refused = [  # type: ignore[var-annotated]
            await server.post("/v1/chat/completions", {**CHAT, **changes, "stream": stream})
            for changes in (
                {"input_ids": [10**9]},
                {"input_ids": ids, "add_special_tokens": True},
                {"input_ids": ids, "documents": [{"a": "b"}]},
                {"input_ids": []},
                {"input_ids": [0] * 5000},
            )
        ]

    assert answer.status == 200
    assert seen.prompts == [ids]
    assert [(a.status, a.error["param"]) for a in refused] == [
        (400, "input_ids[0]"),
        (400, "add_special_tokens"),
        (400, "documents"),
        (400, "input_ids"),
        (400, "messages"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_template_of_the_request_needs_the_operators_trust(stream: bool) -> None:
    body = {**CHAT, "stream": stream, "chat_template": "{{ messages[0].content }}{{ bos_token }}!"}
    seen = Recorded()
    async with serving(served(scripted(seen))) as server:
        refused = await server.post("/v1/chat/completions", body)
    async with serving(served(scripted(seen)), trust_request_chat_template=True) as server:
        taken = await server.post("/v1/chat/completions", body)
        broken = await server.post("/v1/chat/completions", {**body, "chat_template": "{% for %}"})

    assert (refused.status, refused.error["param"]) == (400, "chat_template")
    assert "--trust-request-chat-template" in refused.error["message"]
    assert taken.status == 200
    assert seen.prompts == [TOKENIZER.encode_text("hi!")]
    assert broken.status == 400


async def test_the_tokenizers_configuration_is_served() -> None:
    model = load(Settings())
    config = json.loads((MODEL_DIR / "tokenizer_config.json").read_text("utf-8"))
    async with serving(
        msgspec.structs.replace(served(scripted()), tokenizer_info=model.tokenizer_info)
    ) as server:
        info = (await server.get("/tokenizer_info")).json

    assert info["eos_token"] == config["eos_token"]
    assert info["tokenizer_class"] == config.get("tokenizer_class", "PreTrainedTokenizerFast")
    assert "messages" in info["chat_template"]
    assert set(config) <= set(info)


def test_a_context_beyond_the_models_is_served_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    limit = load(Settings()).engine.info.max_model_len
    model = load(Settings(max_model_len=limit + 16))

    assert model.engine.info.max_model_len == limit + 16
    assert f"more than the {limit} positions" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_template_vars_are_template_variables(stream: bool) -> None:
    template = "{{ mood }}{{ messages[0].content }}"
    seen = Recorded()
    async with serving(served(scripted(seen)), trust_request_chat_template=True) as server:
        body = {**CHAT, "chat_template": template, "stream": stream}
        for fields in ({"template_vars": {"mood": "x"}}, {"chat_template_kwargs": {"mood": "x"}}):
            assert (await server.post("/v1/chat/completions", {**body, **fields})).status == 200
        both = {"template_vars": {"a": 1}, "chat_template_kwargs": {"a": 2}}
        refused = await server.post("/v1/chat/completions", {**body, **both})

    assert seen.prompts == [TOKENIZER.encode_text("xhi")] * 2
    assert (refused.status, refused.error["param"]) == (400, "template_vars")
