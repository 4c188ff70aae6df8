"""Run rules of three keys on a server, and compare what another key has with what nobody has."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from support.servers.asgi import Answer
from support.tenants.world import PATHS, Json, World, alike, invented, world

__all__ = ["CHANGES", "DRIVEN", "KINDS", "LONG", "NUMBER", "OWNED", "WHO", "YES", "TenantMachine", "drives"]

F = TypeVar("F", bound=Callable[..., Any])

DRIVEN: set[str] = set()
"""The operations that rules request."""
WHO = st.integers(0, 2)
NUMBER = st.integers(0, 3)
YES = st.booleans()
LONG = {"max_output_tokens": 300, "ignore_eos": True}
CHANGES: dict[str, Json | None] = {
    "updateChatCompletion": {"metadata": {"changed": "yes"}},
    "updateConversation": {"metadata": {"changed": "yes"}},
    "createConversationItems": {"items": [{"role": "user", "content": "changed"}]},
    "cancelResponse": None,
}
"""The bodies of operations that change a record, by their ids."""
KINDS = ("response_id", "completion_id", "conversation_id")
OWNED = [name for name, each in PATHS.items() if "{" in each.path and name != "retrieveModel"]


def drives(*operations: str) -> Callable[[F], F]:
    """Say which operations a rule requests."""
    DRIVEN.update(operations)
    return lambda function: function


class TenantMachine(RuleBasedStateMachine):
    """Three keys that do all that keys can do, one step after the other; what runs goes on meanwhile."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.world = self.run(self.stack.enter_async_context(world(Path(folder))))
        self.people = self.world.people

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.loop.close()

    @staticmethod
    def may_fail(answer: Any, more: Json) -> bool:
        """Whether this is the error of a context that is too long, or of one that is not whole yet."""
        return bool(more) and answer.error["code"] in (
            "context_length_exceeded",
            "previous_response_in_progress",
            "conversation_locked",
        )

    def as_unknown(
        self,
        theirs: str,
        ask: Callable[[str], Coroutine[Any, Any, Answer]],
        statuses: tuple[int, ...] = (400, 404),
    ) -> None:
        """Ask with an id of another key and with one that nobody has: the answers are the same."""
        none = invented(theirs)
        found, unknown = (self.run(ask(name)) for name in (theirs, none))
        assert found.status in statuses, found.body
        alike(found, theirs, unknown, none)
