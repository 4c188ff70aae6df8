"""The operator's chat template: `--chat-template`, its content format and its default variables.

Laws:
    1. A model without a template, or with a broken one, answers conversations with the given one.
    2. The given template is the only one: for prompts with tools, for dialects, for `/tokenizer_info`.
    3. A template that cannot be used is one sentence that names the option.
    4. The template gets content in the format that the operator names.
    5. A variable has the value of the request's field, or else of the operator's default.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bodies import BODIES
from support.laws import EXPLORED
from support.models import TOKENIZER, scripted, text_chunks
from support.servers.asgi import serving

from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError
from plumbline.answer.turn import ChatPrompt, Message, Tool
from plumbline.cli import main
from plumbline.pocket import MODEL_DIR
from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.loading.model_files import given_ends
from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.settings import OptionError, Settings

TEMPLATES = Path(__file__).parents[2] / "text" / "templates"
SAYS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
HI = (Message(role="user", content="hi"),)
CHAT = "/v1/chat/completions"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder without a chat template. Only its text side is loaded."""
    found = tmp_path / "model"
    found.mkdir()
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(MODEL_DIR / name, found)
    config = json.loads((MODEL_DIR / "tokenizer_config.json").read_text("utf-8"))
    config.pop("chat_template", None)
    (found / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return found


def written(path: Path, text: str = SAYS) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def loaded(folder: Path, **options: Any) -> ServedModel:
    engine = scripted(lambda request: text_chunks(request, "yes"))
    return load(Settings(models=(("", str(folder)),), **options), engine)


def prompt(model: ServedModel, tools: tuple[Tool, ...] = ()) -> str:
    return model.renderer.text(ChatPrompt(messages=HI, tools=tools))


async def test_a_model_without_a_template_chats_with_the_given_one(folder: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "own.jinja")
    async with serving(loaded(folder)) as server:
        refused = await server.post(CHAT, {**BODIES[CHAT], "model": folder.name})
    assert (refused.status, refused.error["param"]) == (400, "messages")
    assert "--chat-template" in refused.error["message"]

    model = loaded(folder, chat_template=file)
    async with serving(model) as server:
        named = {"model": folder.name}
        counted = await server.post("/tokenize", {**named, "messages": [{"role": "user", "content": "hi"}]})
        for path in (CHAT, "/v1/responses"):
            for stream in (True, False):
                body = {**BODIES[path], **named, "stream": stream}
                assert (await server.post(path, body)).status == 200
        info = await server.get("/tokenizer_info")
    assert model.renderer.tokenizer.decode(counted.json["tokens"]) == "<user>hi"
    assert info.json["chat_template"] == SAYS


@pytest.mark.parametrize("broken", ["{% for %}", "{{ raise_exception('never') }}"])
def test_a_broken_template_is_replaced(broken: str, folder: Path, tmp_path: Path) -> None:
    written(folder / "chat_template.jinja", broken)
    if broken == "{% for %}":
        with pytest.raises(TemplateError, match="--chat-template"):
            loaded(folder)
    assert prompt(loaded(folder, chat_template=written(tmp_path / "own.jinja"))) == "<user>hi"


def test_the_models_own_template_as_a_file_changes_no_prompt() -> None:
    own, given = (
        load(Settings(chat_template=text), scripted()) for text in ("", f"{MODEL_DIR}/chat_template.jinja")
    )
    for tools in ((), (Tool(name="f", parameters={"type": "object"}),)):
        assert prompt(own, tools) == prompt(given, tools)
    assert own.dialect.choice == given.dialect.choice


def test_a_name_is_a_template_of_the_model_for_all_conversations(folder: Path) -> None:
    written(folder / "chat_template.jinja", "plain")
    (folder / "additional_chat_templates").mkdir()
    for name in ("tool_use", "rag"):
        written(folder / "additional_chat_templates" / f"{name}.jinja", name)
    tools = (Tool(name="f"),)

    assert [prompt(loaded(folder), each) for each in ((), tools)] == ["plain", "tool_use"]
    for option, shown in (("rag", "rag"), ("tool_use", "tool_use"), ("default", "plain")):
        model = loaded(folder, chat_template=option)
        assert [prompt(model, each) for each in ((), tools)] == [shown, shown]
    with pytest.raises(OptionError, match=r"default, rag, tool_use\), and 'nope' is neither"):
        loaded(folder, chat_template="nope")


def test_the_dialects_are_those_of_the_given_template() -> None:
    def names(**options: Any) -> tuple[str | None, str | None]:
        choice = load(Settings(**options), scripted()).dialect.choice
        return choice.tool and choice.tool.name, choice.reasoning and choice.reasoning.name  # type: ignore[return-value]

    assert names() == ("hermes", "qwen3")
    assert names(chat_template=str(TEMPLATES / "llama31_tools.jinja"))[0] == "llama3_json"
    assert names(chat_template=str(TEMPLATES / "qwen3_coder.jinja"))[0] == "qwen3_coder"
    assert names(chat_template=str(TEMPLATES / "gemma3.jinja"))[0] == "hermes"
    assert names(chat_template=str(TEMPLATES / "gemma3.jinja"), tool_parser="none")[0] is None


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
async def test_tools_work_with_a_template_that_has_no_place_for_them(path: str, tmp_path: Path) -> None:
    """TOOL-01, TOOL-06: the model sees them, and strict ones and required calls are constrained."""
    model = load(Settings(chat_template=written(tmp_path / "own.jinja"), max_num_seqs=1))
    parameters = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 5}},
        "required": ["n"],
        "additionalProperties": False,
    }
    function = {"name": "count_to", "description": "Counts.", "parameters": parameters, "strict": True}
    tools: dict[str, dict[str, Any]] = {
        CHAT: {"type": "function", "function": function},
        "/v1/responses": {"type": "function", **function},
        "/v1/messages": {"name": "count_to", "input_schema": parameters, "strict": True},
    }
    choice = {"type": "any"} if path == "/v1/messages" else "required"
    async with serving(model) as server:
        sent = {
            **BODIES[path],
            "model": model.names[0],
            "tools": [tools[path]],
            "tool_choice": choice,
            "stream": False,
        }
        sent |= {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 200}
        answer = await server.post(path, sent)
    assert answer.status == 200, answer.body
    found = {
        CHAT: lambda json: [one["function"] for one in json["choices"][0]["message"]["tool_calls"]],
        "/v1/responses": lambda json: [one for one in json["output"] if one["type"] == "function_call"],
        "/v1/messages": lambda json: [one for one in json["content"] if one["type"] == "tool_use"],
    }[path](answer.json)
    assert {call["name"] for call in found} == {"count_to"}
    assert '"count_to"' in prompt(model, (Tool(name="count_to", parameters=parameters),))


@pytest.mark.usefixtures("in_one_process")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "must be a Jinja file or a named template of the model"),
        (b"", "which is empty"),
        (b" \n", "which is empty"),
        (b"\xff\xfe", "which is not UTF-8 text"),
        (b"{#" + b" " * 1024**2 + b"#}", "which cannot be read: it is larger than"),
        (b"{% for %}", "which cannot be used: The chat template is not valid"),
    ],
)
@pytest.mark.parametrize("variable", [False, True])
def test_a_template_that_cannot_be_used_is_one_sentence(
    content: bytes | None,
    words: str,
    variable: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path
    if content is not None:
        path = tmp_path / "own.jinja"
        path.write_bytes(content)
    flags = [] if variable else ["--chat-template", str(path)]
    if variable:
        monkeypatch.setenv("PLUMBLINE_CHAT_TEMPLATE", str(path))

    assert main(["serve", "--port", "0", "--store", "none", *flags]) == 2
    # On a slow machine the progress of the engine, which loads meanwhile, comes first.
    *progress, error = capsys.readouterr().err.splitlines()
    assert all(line.startswith("Starting: ") for line in progress)
    assert error.startswith(f"plumbline: {'PLUMBLINE_CHAT_TEMPLATE' if variable else '--chat-template'} ")
    assert words in error


@pytest.mark.parametrize("given", ["{{ messages }}" * 400, "./no/such.jinja", "a\0b", "/dev/zero"])
def test_what_is_no_file_is_not_repeated_at_length(given: str) -> None:
    with pytest.raises(OptionError, match=r"^--chat-template must be a Jinja file") as caught:
        load(Settings(chat_template=given), scripted())
    assert len(str(caught.value)) < 250
    assert "\0" not in str(caught.value)


READS = {
    "string": "{{ messages[0].content }}",
    "parts": "{% for part in messages[0].content %}{{ part.text }}{% endfor %}",
}
EITHER = "{{ 's' if messages[0].content is string else 'p' }}"


@pytest.mark.parametrize("source", [*READS.values(), EITHER])
def test_the_content_format_is_the_operators(source: str, folder: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "own.jinja", f"{source}|{EITHER}")
    for option, shown in (("string", "s"), ("openai", "p")):
        model = loaded(folder, chat_template=file, chat_template_content_format=option)
        assert prompt(model).endswith(f"|{shown}")


def test_auto_reads_the_format_in_the_template(folder: Path, tmp_path: Path) -> None:
    for source in READS.values():
        assert prompt(loaded(folder, chat_template=written(tmp_path / "own.jinja", source))) == "hi"
    wrong = loaded(folder, chat_template=str(tmp_path / "own.jinja"), chat_template_content_format="string")
    # The template looks for parts among the characters of a string.
    assert prompt(wrong) == ""


def test_a_content_format_needs_a_template(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"^--chat-template-content-format needs a chat template"):
        loaded(folder, chat_template_content_format="openai")


VARIABLES = "{{ mood }}|{{ place }}|{{ enable_thinking }}"


@settings(max_examples=EXPLORED or 15, deadline=None)
@given(
    default=st.dictionaries(st.sampled_from(["mood", "place", "enable_thinking"]), st.integers()),
    sent=st.dictionaries(st.sampled_from(["mood", "place", "enable_thinking", "other"]), st.integers()),
    effort=st.sampled_from([None, "none", "high"]),
)
def test_a_variable_of_the_request_wins(
    default: dict[str, int], sent: dict[str, int], effort: str | None
) -> None:
    renderer = Renderer(TOKENIZER, ChatTemplate(VARIABLES), None, default)
    found = renderer.text(ChatPrompt(messages=HI, template_kwargs=sent, effort=effort))

    by_effort = {} if effort is None else {"enable_thinking": effort != "none"}
    expected = {**default, **by_effort, **sent}
    assert found == "|".join(str(expected.get(name, "")) for name in ("mood", "place", "enable_thinking"))


async def test_default_variables_are_those_of_requests_without_them(folder: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "own.jinja", VARIABLES)
    default = json.dumps({"mood": "calm", "enable_thinking": False})
    model = loaded(folder, chat_template=file, default_chat_template_kwargs=default)
    seen: list[str] = []

    def script(request: GenerateRequest) -> Iterable[TokenChunk]:
        seen.append(model.renderer.tokenizer.decode(request.prompt_token_ids))
        return text_chunks(request, "yes")

    async with serving(msgspec.structs.replace(model, engine=scripted(script))) as server:
        messages = [{"role": "user", "content": "hi"}]
        chat = {"model": folder.name, "messages": messages}
        response = {"model": folder.name, "input": "hi"}
        for stream in (False, True):
            for path, body in ((CHAT, chat), ("/v1/responses", response)):
                own = {"chat_template_kwargs": {"mood": "glad", "place": "here"}}
                for fields in ({}, own, {"chat_template_kwargs": {"enable_thinking": True}}):
                    answer = await server.post(path, {**body, **fields, "stream": stream})
                    assert answer.status == 200, answer.body
        both = [await server.post("/tokenize", chat), await server.post("/tokenize", {**chat, **own})]
        counted = await server.post("/v1/responses/input_tokens", response)
        refused = await server.post(CHAT, {**chat, "chat_template_kwargs": {"tools": 1}})

    assert seen == ["calm||False", "glad|here|False", "calm||True"] * 4
    assert [model.renderer.tokenizer.decode(each.json["tokens"]) for each in both] == seen[:2]
    assert counted.json["input_tokens"] == both[0].json["count"]
    assert (refused.status, refused.error["param"]) == (400, "chat_template_kwargs.tools")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "must be a JSON object"),
        ("[1]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("[" * 100_000, "must be a JSON object"),
        ('{"a": NaN}', "must be a JSON object"),
        ('{"messages": []}', "has 'messages', which the server sets"),
        ('{"enable_thinking": false, "tools": 1}', "has 'tools', which the server sets"),
        ('{"enable_thinkng": false}', "has 'enable_thinkng', which the model's chat template does not read"),
    ],
)
def test_wrong_default_variables_are_refused(value: str, words: str) -> None:
    with pytest.raises(OptionError, match=r"^--default-chat-template-kwargs ") as caught:
        load(Settings(default_chat_template_kwargs=value), scripted())
    assert words in str(caught.value)
    assert len(str(caught.value)) < 250


def test_default_variables_need_a_template(folder: Path) -> None:
    with pytest.raises(OptionError, match="does not read"):
        loaded(folder, default_chat_template_kwargs='{"enable_thinking": false}')
    assert loaded(folder, default_chat_template_kwargs="{}").renderer.template is None


def test_a_variable_may_be_that_of_the_template_for_tools(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    written(folder / "chat_template.jinja", "plain")
    written(folder / "additional_chat_templates" / "tool_use.jinja", "{{ mood }}")

    model = loaded(folder, default_chat_template_kwargs='{"mood": "calm"}')
    assert [prompt(model, tools) for tools in ((), (Tool(name="f"),))] == ["plain", "calm"]


def test_the_ends_that_the_given_template_writes_end_answers(tmp_path: Path) -> None:
    """A base model with a template of chats: neither its configs nor its own template name the end of a turn."""
    tokens = {"<|im_start|>": 1, "<|im_end|>": 2, "<|eot_id|>": 3}
    given = written(tmp_path / "t.jinja", SAYS + "<|im_end|>")
    assert given_ends(Settings(chat_template=given), tokens) == {2}
    assert (
        given_ends(Settings(), tokens)
        == given_ends(Settings(chat_template="tool_use"), tokens)
        == frozenset()
    )
