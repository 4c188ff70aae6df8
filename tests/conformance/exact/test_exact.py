"""`plumbline exact` finds no difference on a correct server and every fault of a wrong one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_servers.asgi import with_bodies
from example_servers.good_server import MODEL, serving, tokenizer

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.kinds.plain import PLAIN
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import EngineInfo, GenerateRequest, TokenChunk
from plumbline.scripted_model.command import DEFAULT
from plumbline.server.app import create_app
from plumbline.server.loading.catalog import only
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.settings import Settings
from plumbline_conformance.cli import main
from plumbline_conformance.exact.scripts import Script, ScriptError, load

SET = load(DEFAULT)
HERMES, QWEN = TOOL_DIALECTS["hermes"], REASONING_DIALECTS["qwen3"]
TEMPLATE = (
    "<|im_start|>user\n{{ messages[-1].content }}<|im_end|>\n<|im_start|>assistant\n"  # As the checkpoint's.
)
SPEAKERS = {
    "nothing": None,
    "calls": DialectChoice(HERMES, None),
    "thinking": DialectChoice(None, QWEN),
    "thinking, calls": DialectChoice(HERMES, QWEN),
}


SOME = frozenset(f"script {number}" for number in (4, 16, 25, 27, 28, 67, 70, 78, 79))
"""One for each kind of demand."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a checkpoint, but for its weights."""
    folder = tmp_path_factory.mktemp("scripted")
    (folder / "scripts.json").write_text(json.dumps(msgspec.to_builtins(SET)), "utf-8")
    return folder


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a few of the scripts."""
    file = tmp_path_factory.mktemp("some") / "some.json"
    few = msgspec.structs.replace(SET, scripts=tuple(s for s in SET.scripts if s.prompt in SOME))
    file.write_text(json.dumps(msgspec.to_builtins(few)), "utf-8")
    return file


def app(chosen: DialectChoice | None, change: Callable[[str], str] = str) -> Any:
    """Return our server with an engine that generates the scripts byte by byte, after a change."""
    text = tokenizer()
    answers = {script.prompt: script.output for script in SET.scripts}

    def script(request: GenerateRequest) -> Iterable[TokenChunk]:
        prompt = re.search(r"user\n(.*?)<", bytes(request.prompt_token_ids).decode())
        assert prompt is not None
        for byte in change(answers[prompt.group(1)]).encode():
            yield TokenChunk(token_ids=(byte,))

    info = EngineInfo(
        name="scripted",
        model=MODEL,
        vocab_size=text.vocab_size,
        max_model_len=4096,
        eos_token_ids=frozenset(),
        features=frozenset(),
    )
    model = ServedModel(
        engine=ScriptedEngine(info, script),
        renderer=Renderer(text, ChatTemplate(TEMPLATE)),
        names=(MODEL,),
        defaults=Defaults(vocab_size=text.vocab_size),
        created=1_764_000_000,
        fingerprint="fp_0",
        dialect=PLAIN if chosen is None else build_dialect(chosen, text),
    )
    return create_app(only(model), Settings())


def exact(url: str, scripts: Path, *more: str) -> int:
    return main(["compare", url, str(scripts), "--model", MODEL, *more])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "every"), [("nothing", False), ("calls", False), ("thinking", False), ("thinking, calls", True)]
)
def test_a_server_that_answers_with_the_scripts_is_exact(
    name: str, every: bool, scripts: Path, some: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever markup it parses: the command finds that out."""
    with serving(app(SPEAKERS[name])) as url:
        status = exact(url, scripts if every else some)

    output = capsys.readouterr().out
    assert status == 0, output
    assert f"Parsed markup: {name}" in output


@pytest.mark.long
def test_of_a_server_that_begins_with_a_thought_no_text_is_demanded(
    scripts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parsers of models that never write the beginning of their thinking take plain text for it, and are right to."""
    with serving(app(DialectChoice(HERMES, REASONING_DIALECTS["deepseek_r1"]))) as url:
        status = exact(url, scripts)

    output = capsys.readouterr().out
    assert status == 0, output
    assert "inside reasoning" in output


def wire(change: Callable[[bytes], bytes]) -> Any:
    """Our server, with the bodies of its answers changed on their way."""
    return with_bodies(app(SPEAKERS["thinking, calls"]), change)


def routed(*others: tuple[str, Callable[[dict[str, Any]], Any]], name: str = "thinking, calls") -> Any:
    """Our server, but where a path ends so, the function of the request may choose another application or status."""
    inner = app(SPEAKERS[name])

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return
        message = await receive()
        while message.get("more_body"):
            more = await receive()
            message = {**more, "body": message["body"] + more["body"]}
        first = [message]

        async def again() -> Any:
            return first.pop() if first else await receive()

        body = json.loads(message["body"])
        choices = (choose(body) for path, choose in others if scope["path"].endswith(path))
        chosen = next((choice for choice in choices if choice is not None), inner)
        if isinstance(chosen, int):
            await send({"type": "http.response.start", "status": chosen, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
        else:
            await chosen(scope, again, send)

    return application


def wrong_on(path: str, old: str, new: str) -> Callable[[], Any]:
    """Our server with other text on one API, the same whole and streamed."""

    def application() -> Any:
        wrong = app(SPEAKERS["thinking, calls"], lambda text: text.replace(old, new))
        return routed((path, lambda _: wrong))

    return application


def wrong_when(key: str, old: str, new: str) -> Callable[[], Any]:
    """Our server with other text in chats with this key."""

    def application() -> Any:
        wrong = app(SPEAKERS["thinking, calls"], lambda text: text.replace(old, new))
        return routed(("/chat/completions", lambda body: wrong if key in body else None))

    return application


def left(key: str, text: str) -> Callable[[], Any]:
    """Our server, which ignores stop sequences in chats and answers with this text."""
    wrong = cache(lambda: app(SPEAKERS["thinking, calls"], lambda _: text))

    async def deaf(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        body = json.loads(message["body"])
        del body[key]
        kept = [(k, v) for k, v in scope["headers"] if k != b"content-length"]
        first = [{**message, "body": json.dumps(body).encode()}]

        async def again() -> Any:
            return first.pop() if first else await receive()

        await wrong()({**scope, "headers": kept}, again, send)

    return lambda: routed(("/chat/completions", lambda body: deaf if key in body else None))


def replaced(old: bytes, new: bytes) -> Callable[[], Any]:
    """Our server, with these bytes of its answers replaced."""
    return lambda: wire(lambda body: body.replace(old, new))


@pytest.mark.long
@pytest.mark.parametrize(
    ("application", "rule", "facet"),
    [
        (lambda: app(SPEAKERS["nothing"], str.strip), "CHAT-11", "content"),
        (lambda: app(SPEAKERS["calls"], lambda text: text.replace("Rome", "Roma")), "TOOL-01", "calls"),
        (lambda: app(SPEAKERS["thinking"], lambda text: text.replace("greet", "meet")), "CS-17", "reasoning"),
        (replaced(b'"tool_calls"}', b'"stop"}'), "CHAT-05", "finish"),
        (replaced(b'"finish_reason":"length"', b'"finish_reason":"stop"'), "CHAT-05", "finish"),
        (replaced(b'"delta":{"content":"a', b'"delta":{"content":"o'), "CHAT-19", "streamed"),
        (replaced(b'"delta":"a', b'"delta":"o'), "RS-16", "streamed"),
        (lambda: wire(lambda body: b"{" if b"Oslo" in body else body), "ERR-02", "answer"),
    ],
)  # fmt: skip
def test_every_way_to_be_wrong_is_caught(
    application: Callable[[], Any], rule: str, facet: str, some: Path, tmp_path: Path
) -> None:
    found = missed(application(), some, tmp_path)

    assert (rule, facet) in {(miss["rule"], miss["facet"]) for miss in found}, found[:3]


def missed(application: Any, scripts: Path, tmp_path: Path, status: int = 1) -> list[dict[str, str]]:
    """Return the differences that were found."""
    file = tmp_path / "misses.json"
    with serving(application) as url:
        assert exact(url, scripts, "--json", str(file)) == status
    found: list[dict[str, str]] = json.loads(file.read_text("utf-8"))["misses"]
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("application", "expected"),
    [
        (left("stop", "one two three STOP"), {("CHAT-10", "content", "chat", "stopped")}),
        (left("stop", "one two"), {("CHAT-20", "content", "chat", "stopped")}),
        (wrong_when("max_tokens", "primes", "prunes"), {("CHAT-11", "content", "chat", "cut")}),
        (
            wrong_on("/responses", "primes", "prunes"),
            {("R-09", "content", "responses", how) for how in ("whole", "streamed", "cut")},
        ),
        (
            wrong_on("/v1/completions", "primes", "prunes"),
            {("CMP-10", "content", "completions", how) for how in ("whole", "streamed", "cut")},
        ),
        (
            wrong_on("/chat/completions", "Oslo", "Bergen"),
            {("TOOL-01", "calls", "chat", how) for how in ("whole", "streamed")},
        ),
        (
            wrong_on("/responses", '"search"', '"get_time"'),
            {("TOOL-01", "calls", "responses", how) for how in ("whole", "streamed")},
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_in_one_piece_and_streamed_alike_is_caught_there_and_nowhere_else(
    application: Callable[[], Any], expected: set[tuple[str, ...]], some: Path, tmp_path: Path
) -> None:
    """Only the script shows it, because the stream equals the whole answer."""
    found = missed(application(), some, tmp_path)

    assert {(miss["rule"], miss["facet"], miss["surface"], miss["how"]) for miss in found} == expected, found[
        :3
    ]


@pytest.mark.parametrize("status", [400, 500])
def test_a_server_that_refuses_tools_gets_requests_without(
    status: int, some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server may refuse tools on one API and parse calls on the other, so each is probed."""
    refusing = ("/chat/completions", lambda body: status if "tools" in body else None)

    assert missed(routed(refusing), some, tmp_path, status=0) == []
    output = " ".join(capsys.readouterr().out.split())
    assert "Parsed markup of chat: thinking." in output
    assert "Parsed markup of responses: thinking, calls." in output


def test_a_server_that_refuses_stop_sequences_owes_nothing_for_them(some: Path, tmp_path: Path) -> None:
    refusing = ("completions", lambda body: 422 if "stop" in body else None)

    assert missed(routed(refusing, name="nothing"), some, tmp_path, status=0) == []


@pytest.mark.long
@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_api_that_a_server_does_not_have_is_left_out(
    status: int, some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missed(routed(("/responses", lambda _: status)), some, tmp_path, status=0) == []
    assert "APIs: chat, completions." in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("status", [400, 401, 500])
def test_an_api_that_gives_no_answer_is_reported(status: int, some: Path, tmp_path: Path) -> None:
    found = missed(routed(("/responses", lambda _: status)), some, tmp_path)

    assert [(miss["rule"], miss["facet"], miss["surface"]) for miss in found] == [
        ("ERR-02", "answer", "responses")
    ]


def test_an_unreachable_server_is_not_called_exact(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exact("http://127.0.0.1:1/v1", scripts) == 2
    assert "no answer to 'script 1'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"scripts": []}', '{"scripts": [{"prompt": 1}]}'])
def test_what_is_no_script_set_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "scripts.json"
    file.write_text(text, "utf-8")

    with pytest.raises(ScriptError, match="script"):
        load(tmp_path)
    assert exact("http://127.0.0.1:1/v1", file) == 2


def test_an_answer_without_markup_is_reported_as_text(scripts: Path) -> None:
    found = load(scripts)

    assert found.is_plain(Script(prompt="a", output="if a < b"))
    assert not found.is_plain(Script(prompt="a", output="a </think>"))
    assert sum(map(found.is_plain, found.scripts)) >= 24
