"""SIGHUP at the supervisor renews the keys of all API servers, and of those that are started later."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx2
import msgspec
import pytest
from support.servers.supervised import KEY, Running, supervised, wait_for

from plumbline.server.settings import OptionError, Settings


def statuses(running: Running, key: str, numbers: tuple[int, ...]) -> list[int]:
    """Ask each of these API servers for its models with a key."""
    found = []
    for number in numbers:
        with running.client(number) as client:
            answer = client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        found.append(answer.status_code)
    return found


def _closed(_: bytes) -> None:
    raise RuntimeError("unable to perform operation; the handler is closed")


def test_keys_are_renewed_in_all_api_servers(tmp_path: Path) -> None:
    keys: list[str | OptionError] = []

    def read() -> Settings:
        found = keys.pop()
        if isinstance(found, OptionError):
            raise found
        return msgspec.structs.replace(running.supervisor._settings, api_keys=(found,))

    with supervised(tmp_path, read=read) as running:
        wait_for(lambda: len(running.supervisor._hub._addresses) == 2)
        assert statuses(running, KEY, (1, 2)) == [200, 200]
        keys.append("another-key requests=2")
        running.loop.call_soon_threadsafe(running.supervisor.renew)
        wait_for(lambda: statuses(running, "another-key", (1, 2)) == [200, 200])
        assert statuses(running, KEY, (1, 2)) == [401, 401]
        # One account for both, which no earlier key has used.
        running.let()
        chat = {"model": "test", "messages": [{"role": "user", "content": "hi"}]}
        sent = []
        for number in (1, 2, 1):
            with running.client(number) as client:
                headers = {"authorization": "Bearer another-key"}
                sent.append(client.post("/v1/chat/completions", json=chat, headers=headers).status_code)
        assert sent == [200, 200, 429]

        # Keys that cannot be used change nothing.
        keys.append(OptionError("--api-key", "must not be empty"))
        running.loop.call_soon_threadsafe(running.supervisor.renew)
        wait_for(lambda: not keys)
        assert statuses(running, "another-key", (1, 2)) == [200, 200]

        # One whose pipe is closed keeps the keys from no other, whatever their order is.
        broken = next(iter(running.supervisor._processes)).stdin
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broken, "write", _closed)
            keys.append("a-third-key")
            running.loop.call_soon_threadsafe(running.supervisor.renew)
            wait_for(lambda: sorted(statuses(running, "a-third-key", (1, 2))) == [200, 401])

        # An API server that is started later has the keys of now.
        os.kill(running.pids[0], signal.SIGKILL)
        third = str(running.folder / "api3.sock")
        wait_for(lambda: third in running.supervisor._hub._addresses.values())
        assert statuses(running, "a-third-key", (3,)) == [200]
        assert statuses(running, KEY, (3,)) == [401]
        assert httpx2.get(f"http://127.0.0.1:{running.port}/v1/models").status_code == 401
