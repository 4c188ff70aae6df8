"""Processors of logits that requests name: the guide's example, and how faults are answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from support.servers.live import live
from support.servers.pocket import pocket_settings

from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings
from plumbline.server.settings.values import read_processors

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "sampling.md").read_text("utf-8")
SECTION = GUIDE.split("## Processors of logits\n")[1]
MODULE, COMMAND, BODY = re.findall(r"```\w+(?: example)?\n(.*?)```", SECTION, re.DOTALL)
EXAMPLE = json.loads(BODY)
OPTION = COMMAND.split("--logits-processor ")[1].strip()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A server with the guide's processor, in the guide's file."""
    folder = tmp_path_factory.mktemp("processors")
    (folder / "ban_after.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        settings = msgspec.structs.replace(pocket_settings(), logits_processors=read_processors((OPTION,)))
        with (
            live(lambda: load(settings), Settings()) as server,
            httpx2.Client(base_url=server.url, timeout=60) as client,
        ):
            yield client


def ask(client: httpx2.Client, **changes: Any) -> httpx2.Response:
    return client.post("/v1/completions", json={**EXAMPLE, **changes})


def test_the_example_of_the_guide_works(client: httpx2.Client) -> None:
    (arguments,) = (one["kwargs"] for one in EXAMPLE["logits_processors"])
    (banned,) = arguments["token_ids"]
    plain = ask(client, logits_processors=None).json()["choices"][0]["token_ids"]
    assert banned in plain[arguments["after"] :]
    spelled = {
        "logits_processors": None,
        "custom_logit_processor": "ban_after",
        "custom_params": arguments,
    }
    found = [ask(client, **changes).json()["choices"][0]["token_ids"] for changes in ({}, spelled)]
    assert found[0] == found[1]
    assert len(found[0]) == len(plain)
    assert banned not in found[0][arguments["after"] :]


def test_pickled_code_is_refused(client: httpx2.Client) -> None:
    answer = ask(client, custom_logit_processor='{"callable": "80049512"}', logits_processors=None)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "custom_logit_processor"
    assert "runs no code of requests" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"logits_processors": ["ban_after"]}, "logits_processors[0]"),
        ({"logits_processors": ["ban_after.BanAfter"]}, "logits_processors[0]"),
        (
            {"logits_processors": [{"qualname": "ban_after", "kwargs": {"token_ids": []}}]},
            "logits_processors[0]",
        ),
        ({"logits_processors": None, "custom_logit_processor": "other"}, "custom_logit_processor"),
        ({"logits_processors": None, "custom_params": {"token_ids": [1]}}, "custom_params"),
        ({"logits_processors": ["ban_after"] * 9}, "logits_processors"),
    ],
)
def test_what_cannot_be_is_a_400_that_names_the_field(
    client: httpx2.Client, changes: dict[str, Any], field: str
) -> None:
    answer = ask(client, **changes)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


def test_a_response_names_them_too(client: httpx2.Client) -> None:
    body = {"model": EXAMPLE["model"], "input": "hi", "max_output_tokens": 16, "logits_processors": ["other"]}
    answer = client.post("/v1/responses", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "logits_processors[0]"
    body["logits_processors"] = EXAMPLE["logits_processors"]
    assert client.post("/v1/responses", json=body).status_code == 200


def test_one_that_fails_is_named(client: httpx2.Client) -> None:
    failing = [{"qualname": "ban_after", "kwargs": {"token_ids": ["text"], "after": 2}}]
    answer = ask(client, logits_processors=failing)
    assert answer.status_code == 500
    assert "'ban_after'" in answer.json()["error"]["message"]
    lines = ask(client, logits_processors=failing, stream=True).text.splitlines()
    assert any("'ban_after'" in line and '"error"' in line for line in lines)
    assert ask(client).status_code == 200
