"""Store responses until killed, and print the id of each when it is acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import sys

from plumbline.server.store.open import open_store
from plumbline.server.store.records import ItemRecord, ResponseRecord


def record(name: str) -> ResponseRecord:
    """Return the response of a name; reader and writer agree on it."""
    item = ItemRecord(f"in_{name}", b'{"id":"in_%s","text":"%s"}' % (name.encode(), b"x" * 2_000))
    return ResponseRecord(
        id=name,
        owner="a",
        created_at=1_800_000_000,
        status="completed",
        response=b'{"id":"%s","output":[]}' % name.encode(),
        input=(item,),
        events=name.encode() * 50,
    )


async def main(path: str, prefix: str) -> None:
    store = open_store(path)
    await store.start()
    numbers = itertools.count()

    async def client() -> None:
        while True:
            name = f"{prefix}_{next(numbers)}"
            await store.save_response(record(name))
            print(name, flush=True)

    await asyncio.gather(*(client() for _ in range(8)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
