"""A store in a database does what a plain dict model does, whatever the order of operations.

- Every operation of two owners returns what the model returns.
- After every sequence, what was deleted has left no row behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from support.laws import EXPLORED
from support.stores.store_model import StoreModel
from support.stores.store_records import chat, item, record

from plumbline.server.store.interface import TooLargeError
from plumbline.server.store.open import open_store
from plumbline.server.store.records import UNFINISHED, ConversationRecord
from plumbline.server.store.sql import tables
from plumbline.server.store.sql.sql_store import SqlStore
from plumbline.server.store.sql.sweep import Retention

OWNERS = st.sampled_from(["a", "b"])
NUMBERS = st.integers(0, 3)
ITEMS = st.lists(
    st.builds(item, st.integers(0, 5).map("i{}".format), st.integers(0, 2)),
    max_size=3,
    unique_by=lambda one: one.id,
)
STATUSES = st.sampled_from(["queued", "in_progress", "completed", "failed"])
PAIRS = st.dictionaries(st.sampled_from("kn"), st.sampled_from("vw"), max_size=2)
ORDERS = st.sampled_from(["asc", "desc"])


class StoreMachine(RuleBasedStateMachine):
    """Runs every operation on a store and on a model."""

    def __init__(self, url: str | None) -> None:
        """Open a store: in a new file, or in the empty database of a URL."""
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        store = open_store(url or str(Path(self.folder.name) / "s.db"), Retention(max_age=None))
        assert isinstance(store, SqlStore)
        self.store = store
        self.run(store.start())
        self.model = StoreModel()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self._empty())
        self.run(self.store.stop())
        self.loop.close()
        self.folder.cleanup()

    async def _empty(self) -> None:
        """Delete every record; the tables are then empty but for secrets."""
        for owner, name in [*self.model.responses]:
            assert await self.store.delete_response(owner, name)
        for owner, name in [*self.model.conversations]:
            assert await self.store.delete_conversation(owner, name)
        for owner, name in [*self.model.chats]:
            assert await self.store.delete_chat(owner, name)
        for table in tables.metadata.sorted_tables:
            if table is not tables.secrets:
                query = sa.select(sa.func.count()).select_from(table)
                found = await self.store._database.run(lambda c, query=query: c.scalar(query))  # type: ignore[misc]
                assert found == 0, table.name

    # Responses: ids of an owner begin with its name, as random ids never meet.

    @rule(
        owner=OWNERS, number=NUMBERS, parent=st.none() | NUMBERS, status=STATUSES, given=ITEMS, place=NUMBERS
    )
    def save_response(
        self, owner: str, number: int, parent: int | None, status: str, given: Any, place: int
    ) -> None:
        found = record(
            f"{owner}r{number}",
            owner=owner,
            parent=None if parent is None or parent >= number else f"{owner}r{parent}",
            status=status,
            input=tuple(given),
            conversation=f"{owner}c{place}" if place < 2 else None,
        )
        self.run(self.store.save_response(found))
        self.model.save_response(found)

    @rule(
        owner=OWNERS,
        other=OWNERS,
        number=NUMBERS,
        most=st.integers(1, 4),
        most_bytes=st.just(9_999) | st.integers(0, 400),
    )
    def read_response(self, owner: str, other: str, number: int, most: int, most_bytes: int) -> None:
        name = f"{other}r{number}"
        assert self.run(self.store.response(owner, name)) == self.model.responses.get((owner, name))
        wanted = self.model.chain(owner, name, most, most_bytes)
        if wanted is None:
            with pytest.raises(TooLargeError):
                self.run(self.store.chain(owner, name, most, most_bytes))
        else:
            chain = self.run(self.store.chain(owner, name, most, most_bytes))
            assert [one.id for one in chain] == wanted

    @rule(owner=OWNERS, other=OWNERS, number=NUMBERS)
    def delete_response(self, owner: str, other: str, number: int) -> None:
        name = f"{other}r{number}"
        assert self.run(self.store.delete_response(owner, name)) == self.model.delete_response(owner, name)

    # Conversations

    @rule(owner=OWNERS, number=NUMBERS, pairs=PAIRS, given=ITEMS)
    def save_conversation(self, owner: str, number: int, pairs: Any, given: Any) -> None:
        found = ConversationRecord(id=f"{owner}c{number}", owner=owner, created_at=1, metadata=pairs)
        self.run(self.store.save_conversation(found, given))
        self.model.save_conversation(found, given)

    @rule(owner=OWNERS, other=OWNERS, number=NUMBERS, given=ITEMS)
    def append_items(self, owner: str, other: str, number: int, given: Any) -> None:
        name = f"{other}c{number}"
        assert self.run(self.store.append_items(owner, name, given)) == self.model.append(owner, name, given)

    @rule(owner=OWNERS, other=OWNERS, number=NUMBERS)
    def delete_conversation(self, owner: str, other: str, number: int) -> None:
        name = f"{other}c{number}"
        expected = self.model.delete_conversation(owner, name)
        assert self.run(self.store.delete_conversation(owner, name)) == expected

    @rule(owner=OWNERS, other=OWNERS, number=NUMBERS, which=st.integers(0, 5))
    def delete_conversation_item(self, owner: str, other: str, number: int, which: int) -> None:
        name = f"{other}c{number}"
        expected = self.model.delete_conversation_item(owner, name, f"i{which}")
        assert self.run(self.store.delete_conversation_item(owner, name, f"i{which}")) == expected

    @rule(owner=OWNERS, number=NUMBERS, limit=st.integers(1, 3), order=ORDERS)
    def page_conversation(self, owner: str, number: int, limit: int, order: Any) -> None:
        name = f"{owner}c{number}"
        if (owner, name) not in self.model.conversations:
            return
        seen: list[Any] = []
        more = True
        while more:
            after = seen[-1].id if seen else None
            page = self.run(self.store.conversation_items(owner, name, limit=limit, order=order, after=after))
            seen += page.entries
            more = page.has_more
        assert seen == self.model.listed(owner, name)[:: 1 if order == "asc" else -1]

    # Chat completions

    @rule(owner=OWNERS, number=NUMBERS, pairs=PAIRS, model=st.sampled_from("mn"))
    def save_chat(self, owner: str, number: int, pairs: Any, model: str) -> None:
        found = chat(f"{owner}x{number}", owner=owner, metadata=pairs, model=model)
        self.run(self.store.save_chat(found))
        self.model.save_chat(found)

    @rule(owner=OWNERS, other=OWNERS, number=NUMBERS)
    def delete_chat(self, owner: str, other: str, number: int) -> None:
        name = f"{other}x{number}"
        assert self.run(self.store.delete_chat(owner, name)) == self.model.delete_chat(owner, name)

    @rule(
        owner=OWNERS,
        pairs=PAIRS,
        model=st.none() | st.sampled_from("mn"),
        limit=st.integers(1, 3),
        order=ORDERS,
    )
    def page_chats(self, owner: str, pairs: Any, model: str | None, limit: int, order: Any) -> None:
        seen: list[str] = []
        more = True
        while more:
            after = seen[-1] if seen else None
            page = self.run(
                self.store.chats(owner, model=model, metadata=pairs, limit=limit, order=order, after=after)
            )
            seen += [one.id for one in page.entries]
            more = page.has_more
        assert seen == self.model.chat_names(owner, model, pairs)[:: 1 if order == "asc" else -1]

    @invariant()
    def items_are_those_of_the_newest_record(self) -> None:
        names = [*(f"i{number}" for number in range(6)), "out_ar0", "out_br1"]
        for owner in ("a", "b"):
            assert self.run(self.store.items(owner, names, 99_999)) == self.model.items(owner, names)

    @invariant()
    def nothing_of_this_process_is_abandoned(self) -> None:
        assert self.run(self.store.end_abandoned(lambda found, parts, is_cancelled: found)) == 0
        waiting = {name for (_, name), one in self.model.responses.items() if one.status in UNFINISHED}
        assert waiting <= self.store._unfinished


LAWS = settings(max_examples=EXPLORED or 5, stateful_step_count=25)


def test_a_file_behaves_as_a_model() -> None:
    run_state_machine_as_test(lambda: StoreMachine(None), settings=LAWS)  # type: ignore[arg-type]


def test_postgresql_behaves_as_a_model(postgres_url: str) -> None:
    run_state_machine_as_test(lambda: StoreMachine(postgres_url), settings=LAWS)  # type: ignore[arg-type]
