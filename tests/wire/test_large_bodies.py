"""Large bodies are decoded beside the event loop, in turn by client."""

from __future__ import annotations

import asyncio
import functools
import threading

import pytest

from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.incoming import read_body
from plumbline.contract.wire.large_bodies import LargeBodies

SMALL, LARGE = 1000, 1_000_000


async def test_the_event_loop_goes_on_while_a_large_body_is_read() -> None:
    large, may_end = LargeBodies(), threading.Event()
    reading = asyncio.create_task(large.run("a", LARGE, lambda: may_end.wait(60)))
    # If the loop waited for the large body, this would not run, and the body would wait for it.
    assert await large.run("b", SMALL, threading.get_ident) == threading.get_ident()
    may_end.set()
    assert await reading is True


async def test_a_large_body_waits_for_one_of_another_client_at_most() -> None:
    large, order, may_begin = LargeBodies(), list[str](), threading.Event()
    first = asyncio.create_task(large.run("flood", LARGE, lambda: may_begin.wait(60)))
    flood = [asyncio.create_task(large.run("flood", LARGE, lambda: order.append("flood"))) for _ in range(20)]
    await asyncio.sleep(0)
    other = asyncio.create_task(large.run("other", LARGE, lambda: order.append("other")))
    await asyncio.sleep(0)
    may_begin.set()
    await asyncio.gather(first, *flood, other)
    assert order.index("other") == 0


async def test_what_is_wrong_with_a_body_is_told_whatever_its_size() -> None:
    large, messages = LargeBodies(), []
    for size in (1, 1_000_000):
        body = encode({"model": "m", "messages": [{"role": "user", "content": None}], "x": "x" * size})
        with pytest.raises(ApiError) as refused:
            await large.run(
                "", len(body), functools.partial(read_body, CreateChatCompletionRequest, body, lenient=False)
            )
        messages.append(refused.value.message)
    assert messages[0] == messages[1]
    assert messages[0].endswith("`--lenient` accepts this form.")
