"""`return_hidden_states`: the last layer's state from which the last token of a choice was drawn, as in SGLang."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import torch
from support.servers.live import live
from support.servers.pocket import pocket_settings, text_model

from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

MODEL = "plumbline-pocket"
PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Once upon"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    with (
        live(lambda: load(pocket_settings()), Settings()) as server,
        httpx2.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def ask(client: httpx2.Client, path: str, **more: Any) -> httpx2.Response:
    body = {"model": MODEL, "max_tokens": 5, "return_hidden_states": True, **PATHS[path], **more}
    return client.post(path, json=body)


def chunks(answer: httpx2.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line)["choices"][0] for line in lines]


@pytest.mark.parametrize("path", PATHS)
def test_a_choice_has_the_state_that_its_last_token_is_drawn_from(client: httpx2.Client, path: str) -> None:
    more = {"temperature": 0, "return_token_ids": True, "ignore_eos": True}
    answer = ask(client, path, **more).json()
    choice = answer["choices"][0]
    prompt = answer.get("prompt_token_ids") or choice["prompt_token_ids"]
    model = text_model()
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *choice["token_ids"][:-1]]])
        expected = model.model(ids).last_hidden_state[0, -1]
    found = torch.tensor(choice["hidden_states"])
    assert torch.cosine_similarity(found, expected, dim=0) > 0.99
    assert len(choice["token_ids"]) == 5

    # A stream has the same, in its last chunk of a completion and in the delta before it of a chat.
    streamed = chunks(ask(client, path, stream=True, **more))
    states = [part.get("delta", part).get("hidden_states") for part in streamed]
    assert [one for one in states if one] == [choice["hidden_states"]]


def test_the_choices_of_a_request_have_their_own(client: httpx2.Client) -> None:
    choices = ask(client, "/v1/completions", n=3, seed=1, temperature=2, max_tokens=12).json()["choices"]
    assert len({tuple(choice["hidden_states"]) for choice in choices}) == 3
    plain = ask(client, "/v1/completions", return_hidden_states=False).json()["choices"][0]
    assert "hidden_states" not in plain


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/completions", {"n": 9}),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 3}),
        ("/v1/chat/completions", {"n": 9}),
        ("/v1/completions", {"use_beam_search": True}),
    ],
)
def test_what_cannot_have_them_is_refused_by_name(
    client: httpx2.Client, path: str, more: dict[str, Any]
) -> None:
    answer = ask(client, path, **more)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "return_hidden_states"
