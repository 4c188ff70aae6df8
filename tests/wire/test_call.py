"""A call knows its id, its key and when its client disconnects."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Litestar, Request, get
from litestar.testing import TestClient

from plumbline.contract.wire.call import Call, new_request_id


def test_a_call_returns_from_waiting_when_the_client_has_gone() -> None:
    """HTTP-11."""
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, str]:
        return next(messages)

    call = Call(request_id="r", work_id="r", headers={}, api_key=None, _receive=receive)
    asyncio.run(call.disconnected())
    assert next(messages, None) is None


def test_a_call_knows_its_key_and_its_name() -> None:
    """HTTP-03, HTTP-06."""

    @get("/")
    async def show(request: Request[Any, Any, Any]) -> dict[str, Any]:
        call = Call.of(request)
        return {"key": call.api_key, "id": call.request_id[:4], "agent": call.headers.get("User-Agent")}

    with TestClient(Litestar([show], openapi_config=None)) as client:
        for header, key in [
            ("Bearer k", "k"),
            ("bearer  k ", "k"),
            ("Basic k", None),
            ("Bearer ", None),
            ("", None),
        ]:
            answer = client.get("/", headers={"Authorization": header, "User-Agent": "us"}).json()
            assert answer == {"key": key, "id": "req_", "agent": "us"}
    assert new_request_id() != new_request_id()
