"""Limits of keys: requests and tokens a minute, requests at the same time.

Laws:
    1. In any stretch of time a key is admitted at most a minute's budget and what the time refills.
    2. A key that keeps to its rate is never refused.
    3. What an answer uses is taken from the budget of its key, whatever the API; other keys notice nothing.
    4. A refusal is a 429 that says when to come again, and then a request is admitted.
    5. What runs in the background is at the same time as what its key sends, until it ends.
    6. A line of a key file means one key, or is refused without repeating it.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import answer_with, scripted, served
from support.servers.asgi import serving

from plumbline.server.limits.access import Access
from plumbline.server.limits.claims.hub import Hub
from plumbline.server.limits.claims.shared import SharedClaims
from plumbline.server.limits.keys import as_sent
from plumbline.server.limits.rates import Accounts, Rates
from plumbline.server.settings import Settings, SettingsError
from plumbline.server.settings.keys import Key, digest_of, read_key
from plumbline.server.settings.sources import read_settings

CHAT = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "test-model", "prompt": "hi"},
    "/v1/responses": {"model": "test-model", "input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 50},
}


class Clock:
    """A clock that the test turns."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


K = digest_of("k")


@given(st.integers(1, 100), st.lists(st.floats(0, 40), max_size=40))
def test_a_minute_admits_its_budget_and_what_the_time_refills(limit: int, pauses: list[float]) -> None:
    """Law 1."""
    clock = Clock()
    accounts = Accounts((Key(K, requests=limit),), clock)
    admitted = 0
    for pause in [0.0, *pauses]:
        clock.now += pause
        while not accounts.admit(K).refusal:
            admitted += 1
            accounts.end(K)
        assert admitted <= limit + clock.now * limit / 60 + 1e-6


@given(st.integers(1, 600))
def test_a_key_that_keeps_to_its_rate_is_never_refused(limit: int) -> None:
    """Law 2."""
    clock = Clock()
    accounts = Accounts((Key(K, requests=limit),), clock)
    for _ in range(200):
        assert not accounts.admit(K).refusal
        accounts.end(K)
        clock.now += 60 / limit + 1e-9


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_answer_uses_is_taken_from_its_key(path: str, stream: bool) -> None:
    """Law 3."""
    keys = ("a tokens=1000 requests=10 name=ann", "b tokens=1000", "c")
    async with serving(served(scripted(answer_with("one two three"))), api_keys=keys) as server:
        first = await server.post(path, {**BODIES[path], "stream": stream}, headers=bearer("a"))
        second = await server.post(path, BODIES[path], headers=bearer("a"))
        other = await server.post(path, BODIES[path], headers=bearer("b"))
        free = await server.post(path, BODIES[path], headers=bearer("c"))
    assert [each.status for each in (first, second, other, free)] == [200] * 4
    used = second.json["usage"]
    total = used.get("total_tokens") or used["input_tokens"] + used["output_tokens"]
    # Headers go before the body, so those of a stream do not know its tokens.
    left = [int(each.header("x-ratelimit-remaining-tokens") or 0) for each in (second, other)]
    assert 1000 - 2 * total <= left[0] <= 1000 - total + 60
    assert left[1] >= 1000 - total
    assert (second.header("x-ratelimit-limit-requests"), second.header("x-ratelimit-remaining-requests")) == (
        "10",
        "8",
    )
    assert other.header("x-ratelimit-limit-requests") is None
    assert free.header("x-ratelimit-limit-tokens") is None


async def test_a_key_without_budget_is_told_when_to_come_again() -> None:
    """Law 4; HTTP-05."""
    async with serving(served(scripted()), api_keys=("a requests=2", "b tokens=1", "c")) as server:
        for key, path in (("a", "/v1/chat/completions"), ("b", "/v1/responses")):
            answers = [await server.post(path, BODIES[path], headers=bearer(key)) for _ in range(3)]
            refused = answers[-1]
            assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
            assert int(refused.header("retry-after") or 0) >= 1
            assert "a minute. Please try again in" in refused.error["message"]
            # What costs no tokens goes on.
            assert (await server.get("/v1/models", headers=bearer(key))).status == 200
        assert (
            await server.post("/v1/responses", BODIES["/v1/responses"], headers=bearer("c"))
        ).status == 200


@given(st.integers(1, 60), st.integers(0, 5000))
def test_after_the_time_that_is_said_a_request_is_admitted(limit: int, used: int) -> None:
    """Law 4."""
    clock = Clock()
    accounts = Accounts((Key(K, requests=limit, tokens=limit * 100),), clock)
    while not (verdict := accounts.admit(K)).refusal:
        accounts.take(K, used)
        accounts.end(K)
    clock.now += verdict.retry_after
    assert not accounts.admit(K).refusal


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions"])
async def test_another_spelling_of_a_path_has_the_limits(path: str) -> None:
    """Law 1: the router takes these paths, too."""
    async with serving(served(scripted()), api_keys=("a requests=1",)) as server:
        statuses = [(await server.post(path, CHAT, headers=bearer("a"))).status for _ in range(2)]
    assert statuses == [200, 429]


def test_the_text_of_a_header_is_the_key_that_was_sent() -> None:
    assert as_sent("schlüssel".encode().decode("latin-1")) == "schlüssel"
    assert as_sent("\xff") == "\udcff"


async def test_a_key_of_other_letters_pays_its_tokens() -> None:
    """Law 3: one part of the server reads headers as UTF-8, another as latin-1."""
    async with serving(served(scripted()), api_keys=("schlüssel tokens=1",)) as server:
        statuses = [
            (await server.post("/v1/chat/completions", CHAT, headers=bearer("schlüssel"))).status
            for _ in range(2)
        ]
    assert statuses == [200, 429]


async def test_a_client_that_leaves_has_used_its_tokens() -> None:
    """Law 3. The budget is small, so that little is refilled meanwhile: a token in a second."""
    slow = served(scripted(answer_with("one two three"), delay=0.005))
    async with serving(slow, api_keys=("a tokens=60",)) as server:
        exchange = server.open("POST", "/v1/chat/completions", {**CHAT, "stream": True}, headers=bearer("a"))
        writes = exchange.writes()
        for _ in range(3):  # The role, and deltas.
            await anext(writes)
        exchange.leave()
        await exchange.finished()
        whole = await server.post("/v1/chat/completions", CHAT, headers=bearer("a"))
        left = int(whole.header("x-ratelimit-remaining-tokens") or 0)
    assert left < 60 - whole.json["usage"]["total_tokens"] - whole.json["usage"]["prompt_tokens"]


def test_what_runs_counts_under_the_new_limits_of_its_key() -> None:
    clock = Clock()
    accounts = Accounts((Key(K, requests=2, streams=2),), clock)
    assert not accounts.admit(K).refusal
    accounts.use((Key(K, "ann", requests=2, streams=1),))
    assert "at the same time" in accounts.admit(K).refusal
    accounts.end(K)
    assert not accounts.admit(K).refusal
    accounts.end(K)
    assert "2 requests a minute" in accounts.admit(K).refusal


async def test_processes_share_the_limits_of_a_key(tmp_path: Path) -> None:
    """Laws 1 and 3 for all API servers of an engine together, also when one of them ends."""
    accounts = Accounts((Key(K, requests=4, tokens=100, streams=2),), Clock())
    hub = Hub(tmp_path / "hub", lambda _: None, accounts)
    await hub.start()
    claims = [SharedClaims(tmp_path / "hub", "") for _ in range(2)]
    for each in claims:
        await each.start()
    first, second = (Rates((Key(K, requests=4, tokens=100, streams=2),), each) for each in claims)

    assert await first.enter("k") is None
    assert await second.enter("k") is None
    error = await first.enter("k")
    assert error is not None
    assert "at the same time" in error.message
    second.leave("k")
    assert await first.enter("k") is None
    assert first.headers("k")["x-ratelimit-remaining-requests"] == "1"
    assert await first.enter("other") is None
    await claims[0].stop()  # Its two requests end with it.
    while accounts._accounts[K].running:
        await asyncio.sleep(0)
    claims[1].take(K, 250)
    error = await second.enter("k")
    assert error is not None
    assert "100 tokens a minute" in error.message
    assert int(error.headers["Retry-After"]) == 91
    await claims[1].stop()
    await hub.stop()


async def test_a_request_that_ends_while_it_is_admitted_does_not_count(tmp_path: Path) -> None:
    accounts = Accounts((Key(K, streams=1),), Clock())
    hub = Hub(tmp_path / "hub", lambda _: None, accounts)
    await hub.start()
    claims = SharedClaims(tmp_path / "hub", "")
    await claims.start()
    rates = Rates((Key(K, streams=1),), claims)
    for _ in range(5):
        entering = asyncio.create_task(rates.enter("k"))
        await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait({entering})
    assert await rates.enter("k") is None
    cancelled = asyncio.create_task(rates.enter("k"))  # It would be refused; its end ends no other.
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert await rates.enter("k") is not None
    await claims.stop()
    await hub.stop()


async def test_only_so_many_requests_run_at_the_same_time() -> None:
    slow = served(scripted(answer_with("one two three"), delay=0.05))
    async with serving(slow, api_keys=("a streams=2", "b")) as server:
        posts = [server.post("/v1/chat/completions", CHAT, headers=bearer("a")) for _ in range(4)]
        statuses = sorted(answer.status for answer in await asyncio.gather(*posts))
        assert statuses == [200, 200, 429, 429]
        assert (await server.post("/v1/chat/completions", CHAT, headers=bearer("a"))).status == 200
        assert (await server.post("/v1/chat/completions", {}, headers=bearer("a"))).status == 400
        assert (await server.post("/v1/chat/completions", CHAT, headers=bearer("a"))).status == 200


async def test_a_response_in_the_background_is_at_the_same_time_until_it_ends(tmp_path: Path) -> None:
    """Law 5."""
    slow = served(scripted(answer_with("fine"), delay=0.2))
    body = {**BODIES["/v1/responses"], "background": True}
    async with serving(slow, api_keys=("a streams=2", "b"), store=str(tmp_path / "s.db")) as server:

        async def sent(path: str, body: dict[str, Any]) -> Any:
            return await server.post(path, body, headers=bearer("a"))

        first, second = [await sent("/v1/responses", body) for _ in range(2)]
        assert (first.status, second.status) == (200, 200)
        assert (await sent("/v1/responses", body)).status == 429
        assert (await sent("/v1/chat/completions", CHAT)).status == 429
        for each in (first, second):
            path = f"/v1/responses/{each.json['id']}"
            while (await server.get(path, headers=bearer("a"))).json["status"] == "in_progress":
                await asyncio.sleep(0.02)
        async with asyncio.timeout(20):  # Runs are forgotten a moment after their last event.
            while (await sent("/v1/chat/completions", CHAT)).status == 429:
                await asyncio.sleep(0.02)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1, max_size=30))
def test_a_hash_stands_for_its_key(key: str) -> None:
    """Law 6."""
    if key.startswith("sha256:"):
        return
    hashed = hashlib.sha256(key.encode()).hexdigest()
    expected = Key(hashlib.sha256(key.encode()).digest(), "ann", requests=3)
    assert read_key(f"sha256:{hashed} name=ann requests=3") == expected
    assert read_key(f"{key} requests=3  name=ann") == expected


def test_words_of_another_form_belong_to_the_key() -> None:
    assert read_key("a key of four, words").digest == digest_of("a key of four, words")
    assert read_key("x=y").digest == digest_of("x=y")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("secret1 rpm=3", "has a key with 'rpm='"),
        ("secret1 requests=3 requests=4", "each once"),
        ("secret1 requests=0", "requests are no number from 1"),
        ("secret1 tokens=many", "tokens are no number"),
        ("secret1 stored=0", "stored is no size above 0"),
        ("secret1 name=a/b", "name is not"),
        ("sha256:12", "64 hexadecimal digits"),
    ],
)
def test_a_wrong_line_is_refused_without_repeating_the_key(line: str, words: str) -> None:
    """Law 6."""
    with pytest.raises(SettingsError, match="--api-key") as refused:
        Settings(api_keys=(line,))
    assert words in str(refused.value)
    assert "secret1" not in str(refused.value)


async def test_keys_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A key that stays keeps its account; a file that is wrong changes nothing."""
    path = tmp_path / "keys"
    path.touch(0o600)

    def read() -> Settings:
        return read_settings({"api_key_file": str(path)}, {}).settings

    path.write_text("a requests=1\nb\n")
    access = Access(read())
    assert await access.rates.enter("a") is None
    path.write_text("a requests=1\nc requests=5\n")
    access.read_again(read)
    assert [access.keys.accepts(f"Bearer {key}") for key in "abc"] == [True, False, True]
    assert await access.rates.enter("a") is not None
    assert await access.rates.enter("c") is None
    for wrong in ("# none\n", "a rpm=1\n"):
        path.write_text(wrong)
        access.read_again(read)
        assert access.keys.accepts("Bearer c")
    lines = [record.message for record in caplog.records if "keys" in record.message]
    assert "there are 2" in lines[0]
    assert ["the keys stay as they are" in line for line in lines] == [False, True, True]


def test_keys_are_distinct() -> None:
    with pytest.raises(SettingsError, match="has a key twice"):
        Settings(api_keys=("a", "a name=b"))
