"""API keys: who is let in, what needs none, where they come from (HTTP-*, ERR-*)."""

from __future__ import annotations

import pytest
from support.bodies import BODIES
from support.models import scripted, served
from support.servers.asgi import serving

from plumbline.server.settings import Settings, SettingsError

KEYED = [
    "/v1/models",
    "/v1/models/test-model",
    "/v1/responses/resp_1",
    "/nowhere",
    "/v1/chat/completions",
    "/tokenize",
]


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic one",
        "one",
        "Bearer one two",
        "Bearer ONE",
        "bearerone",
    ],
)
async def test_without_the_key_nothing_is_answered(authorization: str | None) -> None:
    """HTTP-06: 401 for a missing or a wrong key, on every path that is not for probes."""
    headers = {} if authorization is None else {"authorization": authorization}
    async with serving(served(scripted()), api_keys=("one", "two")) as server:
        for path in KEYED:
            answer = await server.get(path, headers=headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert answer.header("www-authenticate") == "Bearer"
        for path, body in BODIES.items():
            assert (await server.post(path, body, headers=headers)).status == 401


@pytest.mark.parametrize("authorization", ["Bearer one", "bearer two", "Bearer  one ", "Bearer schlüssel"])
async def test_each_of_several_keys_is_accepted(authorization: str) -> None:
    """HTTP-06."""
    async with serving(served(scripted()), api_keys=("one", "two", "schlüssel")) as server:
        assert (await server.get("/v1/models", headers={"authorization": authorization})).status == 200


_CLOSED = ("/docs", "/metrics", "/openapi.json", "/openapi.yaml", "/version")


async def test_probes_need_no_key() -> None:
    async with serving(served(scripted()), api_keys=("one",)) as server:
        for path in ("/health", "/health/live", "/health/ready"):
            assert (await server.get(path)).status == 200


@pytest.mark.parametrize("public", [(), ("/metrics",), _CLOSED])
async def test_what_describes_the_server_needs_a_key_unless_it_is_public(public: tuple[str, ...]) -> None:
    async with serving(served(scripted()), api_keys=("one",), public=public) as server:
        for path in _CLOSED:
            assert (await server.get(path)).status == (200 if path in public else 401)
            assert (await server.get(path, headers={"authorization": "Bearer one"})).status == 200


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        (("one",), (200, 401)),  # Nobody else's requests are counted.
        (("one", "two metrics=yes"), (200, 200)),
        (("one models=test-model", "two metrics=yes"), (403, 200)),
        (("one", "two"), (403, 403)),
        (("one", "two", "three metrics=yes"), (403, 403)),
        (("one metrics=yes", "two"), (200, 200)),
    ],
)
async def test_what_counts_all_requests_is_the_operator_s(
    keys: tuple[str, ...], seen: tuple[int, int]
) -> None:
    async with serving(served(scripted()), api_keys=keys, admin_api_keys=("root",), page=True) as server:
        for key, status in zip(("one", "two", "root"), (*seen, 200), strict=True):
            headers = {"authorization": f"Bearer {key}"}
            assert (await server.get("/metrics", headers=headers)).status == status
            if status != 401:
                state = (await server.get("/page/status", headers=headers)).json
                assert state["oversees"] is (status == 200)
                assert (state["memory_bytes"] is None) is (status == 403)
        both = {"authorization": "Bearer one", "x-admin-key": "root"}
        assert (await server.get("/metrics", headers=both)).status == 200
    async with serving(served(scripted()), api_keys=keys, public=("/metrics",)) as server:
        assert (await server.get("/metrics")).status == 200


def test_only_paths_that_describe_the_server_can_be_public() -> None:
    for path in ("/v1/models", "metrics", ""):
        with pytest.raises(SettingsError, match="--public must be one of /docs, /metrics"):
            Settings(public=(path,))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "example.org"])
def test_without_a_key_only_loopback_is_served(host: str) -> None:
    with pytest.raises(SettingsError, match="--api-key"):
        Settings(host=host)
    assert Settings(host=host, api_keys=("one",)).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.9"])
def test_loopback_needs_no_key(host: str) -> None:
    assert Settings(host=host).api_keys == ()


def test_an_empty_key_is_an_error() -> None:
    with pytest.raises(SettingsError, match="empty"):
        Settings(api_keys=("",))
