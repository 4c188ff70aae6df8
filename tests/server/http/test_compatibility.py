"""Every row of docs/reference/compatibility*.md is what the server does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.bodies import BODIES
from support.models import scripted, served
from support.servers.asgi import serving

from plumbline.cli import main
from plumbline.server.settings import OPTIONS

ROOT = Path(__file__).parents[3]
PAGE = "".join(
    (ROOT / "docs" / "reference" / f"compatibility{name}.md").read_text("utf-8")
    for name in ("", "-fields", "-vllm", "-others")
)
CHAT = "/v1/chat/completions"
COUNTED = {
    "/v1/messages/count_tokens": {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
}
LOADS = {
    "/v1/model/load": {"name": "test-model"},
    "/models/load": {"model": "test-model"},
    "/models/unload": {"model": "test-model"},
}


def table(title: str) -> list[list[str]]:
    section = re.split("\n#+ ", PAGE.split(f"## {title}\n")[1])[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) > 3
    return rows[1:]


def assert_is_a_test(cell: str) -> None:
    path, function = cell.strip("` |").split("::")
    assert f"def {function}(" in (ROOT / path).read_text("utf-8")


def endpoints() -> list[Any]:
    """The paths of each row; a path without a method has that of the one before."""
    found = []
    for names, _, here in table("Endpoints"):
        method = "GET"
        for name in re.findall(r"`([^`]+)`", names):
            first, _, rest = name.partition(" ")
            method, path = (first, rest) if rest else (method, first)
            if path.startswith("/"):
                found.append(pytest.param(method, path.replace("{id}", "test-model"), here, id=name))
    return found


@pytest.mark.parametrize(("method", "path", "here"), endpoints())
async def test_an_endpoint_is_answered_or_refused(method: str, path: str, here: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"admin_api_keys": ("root",)} if "admin key" in here else {}
    settings |= {"store": str(tmp_path / "s.db")} if "store" in here else {}
    async with serving(served(scripted()), **settings) as server:
        body = (
            {**BODIES, **LOADS, **COUNTED}.get(path, {"model": "test-model", "input": "hi"})
            if method == "POST"
            else None
        )
        answer = await server.request(method, path, body, headers={"x-admin-key": "root"})

    if "test-model" in path and "store" in here:
        # Nothing has this id. tests/server/memory/test_stored_responses.py and others use ids that exist.
        assert answer.status == 404
        assert answer.error["message"].endswith("'test-model' not found.")
    elif here.startswith("answered"):
        assert answer.status == 200
    else:
        assert (answer.status, here[:3]) == (404, "404")
        assert path.rsplit("/", 1)[0] in answer.error["message"] or "unsupported_operation" in here


async def test_llama_cpp_s_field_of_tokenize_is_refused() -> None:
    async with serving(served(scripted())) as server:
        answer = await server.post("/tokenize", {"content": "hi"})

    assert (answer.status, answer.error["param"]) == (400, "prompt")


SAMPLES: dict[str, Any] = {
    "n_predict": 5,
    "n_cmpl": 2,
    "max_output_tokens": 5,
    "lora_path": "a",
    "cfg_scale": 2,
}
OBJECTS = {"kv_transfer_params", "mm_processor_kwargs", "session_params"}


@pytest.mark.parametrize("row", table("Fields that are refused"), ids=lambda row: row[0])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_field_that_would_change_the_answer_is_refused(row: list[str], stream: bool) -> None:
    name = row[0].strip("`")
    value = SAMPLES.get(name, {"a": 1} if name in OBJECTS else True)
    async with serving(served(scripted())) as server:
        answer = await server.post(CHAT, {**BODIES[CHAT], name: value, "stream": stream})

    assert (answer.status, answer.error["param"]) == (400, name)
    if row[2].startswith("`"):
        assert row[2].strip("` ") in answer.error["message"]


@pytest.mark.parametrize("row", table("Fields that are ignored by name"), ids=lambda row: row[1].strip(" |"))
async def test_an_unknown_field_is_named(row: list[str]) -> None:
    names = re.findall(r"`([^`]+)`", row[0])
    async with serving(served(scripted())) as server:
        answer = await server.post(CHAT, {**BODIES[CHAT], **dict.fromkeys(names, 1)})
        strict = await server.post(CHAT, BODIES[CHAT])

    assert answer.status == strict.status == 200
    ignored = answer.header("x-plumbline-ignored") or ""
    # Few fields of other servers may look like a misspelt one of ours.
    assert ignored.count("?)") <= 2
    assert re.sub(r" \(\w+\?\)", "", ignored) == ", ".join(names)


@pytest.mark.parametrize("row", table("Options of servers"), ids=lambda row: row[0])
def test_an_option_is_ours_or_unknown(row: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    names, servers, here, test = row
    assert servers
    assert re.match(r"(yes|no)\b", here)
    for name in re.findall(r"`(--[a-z-]+)`", names):
        assert (name in {option.flag for option in OPTIONS}) is here.startswith("yes")
        if here.startswith("no"):
            with pytest.raises(SystemExit) as ended:
                main(["serve", name])
            assert ended.value.code == 2
            assert name in capsys.readouterr().err
    assert_is_a_test(test)


SYSTEMS = ["vLLM", "SGLang", "transformers serve", "TabbyAPI", "aprender-serve"]
CONTRACT = (ROOT / "openapi" / "plumbline.yaml").read_text("utf-8") + "".join(
    path.read_text("utf-8") for path in sorted((ROOT / "openapi" / "schemas").rglob("*.yaml"))
)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_behaviour_of_a_system_has_a_test(system: str) -> None:
    """Each row names a test that exists; its fields are of the contract, refused, ignored or rewritten by name."""
    titles = ("Fields that are refused", "Fields that are ignored by name", "Forms of other servers")
    declared = {
        name
        for title in titles
        for name in re.findall(r"`(\w+)`", PAGE.split(f"## {title}\n")[1].split("\n## ")[0])
    }
    for _, fields, here, test in table(system):
        assert here
        assert_is_a_test(test)
        for name in re.findall(r"`(\w+)`", fields):
            assert name in declared or re.search(rf"^ *(- )?{name}:", CONTRACT, re.MULTILINE), name


def test_every_system_has_a_table() -> None:
    behaviour = PAGE.partition("# Behaviour of vLLM")[2]
    found = re.findall("^## (.*)", behaviour, re.MULTILINE)
    assert [name for name in found if name != "Tests of other servers"] == SYSTEMS
