"""`plumbline verify`: reads K2-Vendor-Verifier's files, and names the one thing that is wrong with a server.

The server of these tests is a function from a request to an answer; `nox -s verify` has real ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from plumbline_conformance.cli import main
from plumbline_conformance.console.commands import JUDGE, parse_arguments, parser_of
from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.suite.scenario import Request, Target
from plumbline_conformance.transcript.answer_fold import fold_whole
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.verify import verification as run
from plumbline_conformance.verify.causes import failing
from plumbline_conformance.verify.formats import html, junit, lines
from plumbline_conformance.verify.report import Findings
from plumbline_conformance.verify.samples import Row, fits, read_results, read_samples, result_of
from plumbline_conformance.verify.verification import VerifiedRows, verify

Json = dict[str, Any]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["x"]}}}
TEMPLATE = "a template"
KEY = "sk-0123456789abcdef"


def request(number: int) -> Json:
    """Rows with an odd number need the tool."""
    content = f"{'call' if number % 2 else 'say'} {number}"
    return {
        "messages": [{"role": "user", "content": content}],
        "tools": [TOOL],
        "max_tokens": 50,
        "temperature": 0,
    }


class Server:
    """A right server, whose parts can be replaced.

    Args:
        parses: whether it reads the calls that its model writes.
        prompt: adds tokens to each prompt.
        limit: of tokens, below that of the request.
        frozen: whether it ignores the temperature.
        write: what the model writes to a prompt.
        tokenizes: whether it has `/tokenize`.
    """

    def __init__(
        self,
        *,
        parses: bool = True,
        prompt: int = 0,
        limit: int = 1000,
        frozen: bool = False,
        write: Callable[[str], str] | None = None,
        tokenizes: bool = True,
    ) -> None:
        self.parses, self.prompt, self.limit, self.frozen = parses, prompt, limit, frozen
        self.write = write or (
            lambda prompt: 'CALL f {"x": 1}' if prompt.startswith("call") else f"to {prompt}"
        )
        self.tokenizes = tokenizes
        self.drawn = 0

    async def send(self, asked: Request) -> Exchange:
        body = asked.json or {}
        status, answer = self._answer(asked.path, body)
        sent = json.dumps(body).encode()
        found = Exchange(name="", method=asked.method, url="", request_headers={}, request_body=sent)
        found.status = status
        found.headers = [("content-type", "application/json")]
        found.frames = [(0.0, json.dumps(answer).encode())]
        return found

    def _answer(self, path: str, body: Json) -> tuple[int, Any]:
        if path == "/tokenizer_info":
            return 200, {"chat_template": TEMPLATE}
        if path == "/tokenize":
            if not self.tokenizes:
                return 404, {"error": {"message": "no such path"}}
            return 200, {"tokens": [ord(char) for char in body["messages"][0]["content"]]}
        if path == "/completions":
            text = self.write("".join(map(chr, body["prompt"])))
            return 200, {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
        prompt = body["messages"][0]["content"]
        text, calls, finish = self.write(prompt), [], "stop"
        if not self.frozen and body.get("temperature", 1) > 1:
            self.drawn += 1
            text += f" {self.drawn}"
        if self.parses and text.startswith("CALL "):
            name, _, arguments = text.removeprefix("CALL ").partition(" ")
            function = {"name": name, "arguments": arguments}
            text, calls, finish = "", [{"id": "c", "type": "function", "function": function}], "tool_calls"
        if self.limit < 50:
            calls, finish = [], "length"
        return 200, {
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "tool_calls": calls},
                    "finish_reason": finish,
                }
            ],
            "usage": {"prompt_tokens": len(prompt) + self.prompt, "completion_tokens": min(self.limit, 9)},
        }


class Refusing(Server):
    """Answers every request with an error that repeats the key."""

    def _answer(self, path: str, body: Json) -> tuple[int, Any]:
        return 401, {"error": {"message": f"no key like {KEY}"}}


def readers(
    tool: str, reasoning: str, template: str
) -> Callable[[str, Sequence[Any]], list[tuple[str, str]]]:
    """Reads what the model of these servers writes."""
    assert (tool, reasoning) == ("auto", "auto")
    assert template in ("", TEMPLATE)

    def read(text: str, tools: Sequence[Any]) -> list[tuple[str, str]]:
        assert tools == [TOOL]
        name, _, arguments = text.removeprefix("CALL ").partition(" ")
        return [(name, arguments)] if text.startswith("CALL ") else []

    return read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with requests and the results of the right server."""
    (tmp_path / "rows.jsonl").write_text(
        "\n".join(json.dumps(request(number)) for number in range(1, 13)), "utf-8"
    )
    verified(Server(), tmp_path, VerifiedRows(results=tmp_path / "baseline.jsonl", repeats=1))
    return tmp_path


def verified(server: Server, folder: Path, asked: VerifiedRows | None = None) -> Findings:
    """Verify a server by the rows of a folder, and by default by its baseline."""

    class Sender:
        async def __aenter__(self) -> Any:
            return server.send

        async def __aexit__(self, *_: object) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "sender", lambda *_: Sender())
        target = Target(base_url="http://h/v1", model="m", api_key=KEY)
        asked = asked or VerifiedRows(baselines=(folder / "baseline.jsonl",))
        return asyncio.run(verify(target, folder / "rows.jsonl", asked, readers))


def garbled(prompt: str) -> str:
    return f"other {prompt}"


@pytest.mark.parametrize(
    ("server", "causes"),
    [
        (Server(), []),
        (Server(prompt=3), ["template"]),
        (Server(parses=False), ["parser"]),
        (Server(limit=5), ["limit"]),
        (Server(frozen=True), ["sampling"]),
        (Server(write=garbled), ["weights"]),
        (Server(write=garbled, tokenizes=False), ["unknown", "weights"]),
        (Server(write=garbled, prompt=3), ["template"]),
    ],
)
def test_a_fault_is_named_and_no_other(folder: Path, server: Server, causes: list[str]) -> None:
    found = verified(server, folder)
    assert [cause.kind for cause in found.causes] == causes
    assert found.status == bool(causes)


def test_a_row_that_fails_has_what_is_wrong_and_a_command(folder: Path) -> None:
    found = verified(Server(write=lambda _: 'CALL g {"x": 1}'), folder)
    assert {failure.row for failure in found.failures} == {*range(1, 13)}
    assert "calls a tool that the request does not have: g" in found.failures[0].problems
    program, command, _, samples, *_ = found.failures[2].command.split()
    assert (program, command, samples) == ("plumbline", "compare", str(folder / "rows.jsonl"))
    assert "--row 3 " in found.failures[2].command
    words = found.failures[2].command.split()[1:]
    assert parse_arguments(parser_of(JUDGE, "compare"), words).row == ["3"]


def test_one_row_is_asked_alone(folder: Path) -> None:
    assert verified(Server(), folder, VerifiedRows(rows=(4,))).rows == 1


def test_without_a_baseline_there_are_figures_and_no_verdict(folder: Path) -> None:
    found = verified(Server(write=lambda _: "CALL f {}"), folder, VerifiedRows())
    figures = {figure.name: figure for figure in found.figures}
    assert figures["schema accuracy"].value == 0
    assert {figure.verdict for figure in found.figures} == {""}
    assert found.status == 0


def test_without_an_answer_the_status_is_2(folder: Path) -> None:
    assert verified(Refusing(), folder, VerifiedRows()).status == 2
    assert verified(Refusing(), folder).status == 2


def test_a_key_that_the_server_repeats_is_in_no_file(folder: Path) -> None:
    asked = VerifiedRows(baselines=(folder / "baseline.jsonl",), results=folder / "results.jsonl")
    found = verified(Refusing(), folder, asked)
    written = (folder / "results.jsonl").read_text("utf-8") + msgspec.json.encode(found).decode()
    assert "no key like sha256:" in written
    assert KEY not in written


def test_half_a_surrogate_pair_is_written(folder: Path) -> None:
    asked = VerifiedRows(baselines=(folder / "baseline.jsonl",), results=folder / "results.jsonl")
    found = verified(Server(write=lambda _: 'CALL \ud83d {"x": "\ud83d"}'), folder, asked)
    assert "the request does not have: \\ud83d" in found.failures[0].problems[0]
    assert html(found).encode()
    assert msgspec.json.encode(found)
    rows = {row.number: row for row in read_samples(folder / "rows.jsonl")}
    assert {one.calls for one in read_results(folder / "results.jsonl", rows)} == {
        (("\ud83d", '{"x": "\ud83d"}'),)
    }


def test_a_parser_that_does_not_exist_is_refused_before_a_row_is_sent(folder: Path) -> None:
    def refuse(*_: str) -> None:
        raise ValueError("--tool-parser must be one of these")

    target = Target(base_url="http://h/v1", model="m")
    with pytest.raises(UnusableInput, match="--tool-parser must be one of these"):
        asyncio.run(verify(target, folder / "rows.jsonl", VerifiedRows(), refuse))


def test_rows_without_a_baseline_are_not_compared(folder: Path) -> None:
    first = (folder / "baseline.jsonl").read_text("utf-8").splitlines()[0]
    (folder / "baseline.jsonl").write_text(first, "utf-8")
    broken = Server(write=lambda prompt: 'CALL f {"x": 1}' if prompt == "call 1" else "CALL f {}")
    figures = {figure.name: figure for figure in verified(broken, folder).figures}
    assert (figures["schema accuracy"].of, figures["schema accuracy"].value) == (3, 1.0)


def test_the_call_that_is_wrong_is_shown() -> None:
    row = Row(1, request(1))
    answer = {
        "choices": [
            {
                "index": 0,
                "message": {"content": None, "tool_calls": [called('{"x": 1}'), called('{"y": 2}')]},
                "finish_reason": "tool_calls",
            }
        ]
    }
    result = result_of(row, fold_whole("chat", answer))
    assert list(failing(row, [], [result])) == ['the arguments do not match the schema: {"y": 2}']


def called(arguments: str) -> Json:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_what_was_found_is_written_in_every_form(folder: Path) -> None:
    found = verified(Server(parses=False), folder)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Findings) == found
    cases = ElementTree.fromstring(junit(found)).findall(".//testcase")
    assert [case.get("name") for case in cases if case.find("failure") is not None]
    assert "cause: parser" in "\n".join(lines(found))
    page = html(found)
    assert "parser" in page
    assert "http://" not in page.replace("http://h/v1", "")


def test_results_of_the_verifier_of_kimi_are_read(tmp_path: Path) -> None:
    """Its lines have these members; `response` is the chat completion."""
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(request(1))}\n\n{json.dumps(request(2))}\n", "utf-8")
    response = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "kimi-k2",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": '{"y": 1}'}}
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }
    line = {
        "data_index": 3, "request": request(2), "extra_body": {}, "response": response, "status": "success",
        "finish_reason": "tool_calls", "tool_calls_valid": False, "last_run_at": "2026-01-01", "duration_ms": 9,
        "hash": "0",
    }  # fmt: skip
    failed = {"data_index": 1, "status": "failed", "response": {"error": "timeout"}, "finish_reason": None}
    (tmp_path / "results.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(failed)}\n", "utf-8")
    rows = {row.number: row for row in read_samples(tmp_path / "rows.jsonl")}
    assert list(rows) == [1, 3]
    found, other = read_results(tmp_path / "results.jsonl", rows)
    assert (found.row, found.finish, found.known, found.valid, found.prompt_tokens) == (
        3, "tool_calls", True, False, 7,
    )  # fmt: skip
    assert other.error == "failed"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no requests"),
        (b"{", "line 1: not JSON"),
        (b'{"messages": []}\n{"prompt": ""}', "line 2: a request needs `messages`"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b'{"messages": [], "tools": 5}', "line 1: `tools` is not a list"),
    ],
)
def test_a_file_that_is_none_is_refused_by_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UnusableInput, match=message):
        read_samples(path)


@pytest.mark.parametrize(
    ("parameters", "arguments", "right"),
    [
        ({"type": "object", "required": ["x"]}, '{"x": 1}', True),
        ({"type": "object", "required": ["x"]}, '{"y": 1}', False),
        ({"type": "object"}, "{", False),
        ({"type": "object"}, "[]", False),
        ({}, '{"x": "\\ud800"}', True),
        ({"type": "no type"}, "{}", True),
        ({"$ref": "http://127.0.0.1:1/schema"}, "{}", True),
    ],
)
def test_arguments_are_checked_by_a_schema_that_is_one(parameters: Json, arguments: str, right: bool) -> None:
    assert fits(parameters, arguments) == right


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--body", "[]"], "--body must be a JSON object"),
        (["--baseline", "none.jsonl"], "--baseline names none.jsonl, which cannot be read: no such file"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(
    capsys: pytest.CaptureFixture[str], folder: Path, options: list[str], message: str
) -> None:
    command = ["compare", "http://127.0.0.1:1/v1", str(folder / "rows.jsonl"), "--model", "m", *options]
    assert main(command) == 2
    assert message in capsys.readouterr().err
