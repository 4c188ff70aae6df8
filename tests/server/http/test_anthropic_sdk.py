"""Anthropic's official Python client against a real server, at the paths that it shares with OpenAI's."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import pytest
from support.judges import valid
from support.servers.live import Live


@pytest.fixture(scope="module")
def client(echoing: Live) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=echoing.url, api_key="test-key", max_retries=0) as client:
        yield client


def test_models_are_listed_in_its_form(client: anthropic.Anthropic) -> None:
    """MSG-15."""
    raw = client.models.with_raw_response.list()
    valid("MessageModelList", raw.http_response.json())
    found = list(client.models.list())
    assert [model.id for model in found] == ["test-model", "org/alias"]
    assert found[0].lifecycle == "active"
    assert found[0].created_at.tzinfo is not None
    assert client.models.retrieve("org/alias") == found[1]


def test_what_is_wrong_with_a_list_of_models_has_its_form(client: anthropic.Anthropic) -> None:
    """MSG-11."""
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.models.retrieve("nothing")
    assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.AuthenticationError) as stranger:
        client.with_options(api_key="wrong").models.list()
    assert stranger.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
