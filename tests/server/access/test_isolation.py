"""The prefix cache is one for each key, unless the operator shares it (`test_tenants.py` has all else)."""

from __future__ import annotations

from typing import Any

import pytest
from support.servers.api_calls import native_server

OWN, OTHER = ({"authorization": f"Bearer {key}"} for key in ("own", "other"))
CHAT = {"model": "test-model", "messages": [{"role": "user", "content": "a secret " * 40}], "max_tokens": 2}


@pytest.mark.parametrize("shared", [False, True])
async def test_no_key_learns_from_the_prefix_cache_what_another_has_sent(shared: bool) -> None:
    async def cached(headers: dict[str, str], **more: Any) -> int:
        usage = (await server.post("/v1/chat/completions", {**CHAT, **more}, headers=headers)).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    async with native_server(api_keys=("own", "other"), share_prefix_cache=shared) as server:
        assert await cached(OWN) == 0
        assert await cached(OWN) > 0
        assert (await cached(OTHER) > 0) is shared
        assert await cached(OTHER) > 0
        # A salt of the client's is one of its own.
        assert await cached(OWN, cache_salt="a") == 0
        assert (await cached(OTHER, cache_salt="a") > 0) is shared
