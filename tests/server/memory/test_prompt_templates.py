"""Requests name templates that the operator keeps (`--prompts`).

- A template is under the request: what the request sets wins, and its input comes last.
- Variables are put in once, all of them are given, and none is left over. Mistakes are named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import TOKENIZER, answer_with, scripted, served
from support.servers.asgi import Answer, serving

from plumbline.server.loading.prompts import load_prompts
from plumbline.server.protocols.responses.prompt_templates import BadTemplateError, PromptTemplate
from plumbline.server.settings import SettingsError

GREETING: dict[str, Any] = {
    "instructions": "You speak {{ language }}.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "I am {{name}}, {{name}}."}]},
        {"role": "assistant", "content": "Hello."},
    ],
    "temperature": 0.5,
    "max_output_tokens": 20,
}
IMAGE = {"type": "input_image", "image_url": "data:,"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    versions = {"2": {**GREETING, "instructions": "Old."}, "10": GREETING}
    for version, body in versions.items():
        path = tmp_path / "greeting" / f"{version}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(body), "utf-8")
    return tmp_path


async def ask(folder: Path | None, **fields: Any) -> tuple[Answer, str]:
    """Send a request; return the answer and the prompt that the model saw."""
    prompts: list[str] = []

    def script(request: Any) -> Any:
        prompts.append(TOKENIZER.decode(request.prompt_token_ids))
        return answer_with("Yes.")(request)

    async with serving(served(scripted(script)), prompts="" if folder is None else str(folder)) as server:
        answer = await server.post("/v1/responses", {"model": "test-model", **fields})
    return answer, "".join(prompts)


def prompt(**fields: Any) -> dict[str, Any]:
    return {"id": "greeting", "variables": {"name": "Ada", "language": "French"}, **fields}


async def test_a_template_is_under_the_request(folder: Path) -> None:
    answer, seen = await ask(folder, prompt=prompt(), input="And you?", temperature=0.25)

    assert answer.status == 200, answer.body
    places = [seen.index(text) for text in ("You speak French.", "I am Ada, Ada.", "Hello.", "And you?")]
    assert places == sorted(places)
    assert (answer.json["temperature"], answer.json["max_output_tokens"]) == (0.25, 20)
    assert answer.json["instructions"] == "You speak French."
    assert answer.json["prompt"] == prompt()


async def test_the_input_of_a_template_is_enough(folder: Path) -> None:
    answer, seen = await ask(
        folder, prompt=prompt(version="2", variables={"name": {"type": "input_text", "text": "Bo"}})
    )

    assert answer.status == 200, answer.body
    assert "Old." in seen
    assert "I am Bo, Bo." in seen


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"id": "other"}, 404, "prompt.id"),
        ({"version": "3"}, 404, "prompt.version"),
        ({"variables": {"name": "Ada"}}, 400, "prompt.variables.language"),
        ({"variables": {"name": "a", "language": "b", "more": "c"}}, 400, "prompt.variables.more"),
        ({"variables": {"name": IMAGE, "language": "b"}}, 400, "prompt.variables.name"),
        ({"variables": {"name": "x" * 9_000_000, "language": "b"}}, 400, "prompt.variables"),
    ],
)  # fmt: skip
async def test_what_does_not_fit_is_named(
    folder: Path, fields: dict[str, Any], status: int, param: str
) -> None:
    answer, seen = await ask(folder, prompt=prompt(**fields), input="x")

    assert (answer.status, answer.error["param"]) == (status, param)
    assert not seen


async def test_without_templates_the_field_is_refused() -> None:
    answer, _ = await ask(None, prompt=prompt(), input="x")

    assert (answer.status, answer.error["param"]) == (400, "prompt")
    assert "--prompts" in answer.error["message"]


@given(st.text(), st.text())
def test_what_is_put_in_is_not_looked_at_again(one: str, two: str) -> None:
    template = PromptTemplate("1", json.dumps({"instructions": "{{a}}|{{b}}", "input": "x"}).encode())
    marked = "{{b}}" + one

    assert template.filled({"a": marked, "b": two}).instructions == f"{marked}|{two}"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'{"stream": true}', "cannot set 'stream'"),
        (b'{"temperature": 9}', "temperature"),
        (b'{"input": [{"role": "nobody", "content": "{{x}}"}]}', "role"),
    ],
)
def test_a_template_that_cannot_be_used_stops_the_start(tmp_path: Path, body: bytes, reason: str) -> None:
    with pytest.raises(BadTemplateError, match=reason):
        PromptTemplate("1", body)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "1.json").write_bytes(body)
    with pytest.raises(SettingsError, match=r"1\.json"):
        load_prompts(str(tmp_path))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--prompts"):
        load_prompts(str(tmp_path / "nowhere"))
