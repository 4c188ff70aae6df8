"""A key is a tenant: nothing of one key is seen, counted or held up by another, whatever the three of them do.

- No answer has a text, an id, a hidden model or a path of others, and none differs from that of a server without them:
  what belongs to another key is answered as what does not exist.
- Lists, pages and limits are those of the key alone, and so is what the prefix cache tells.
- A key that asks for all that it can get keeps no other from its share.
- Every operation of the contract, and every other route, is driven, or there is a reason why not.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support.laws import EXPLORED
from support.tenants.answers import AnswerRules
from support.tenants.machine import CHANGES, DRIVEN, OWNED
from support.tenants.operating import OperatingRules
from support.tenants.records import RecordRules
from support.tenants.work import WorkRules
from support.tenants.world import PATHS

from plumbline.server.page.routes import page_routes
from plumbline.server.websocket import responses_socket

SELF = {
    "getHealth": "has nothing of a key and needs none",
    "getHealthLive": "has nothing of a key and needs none",
    "getHealthReady": "has nothing of a key and needs none",
}
"""Operations that no rule drives, and why."""
OTHER_ROUTES = {
    "/": "is requested by `look`",
    "/docs": "is requested by `look`",
    "/page/{name:str}": "is requested by `look`",
    "/page/vendor/{name:str}": "has files of the package, the same for all",
    "/page/status": "is requested by `look`",
    "/page/judge": "judges what the request has, and keeps nothing",
    "/page/validate": "compares what the request has, and keeps nothing",
    "/v1/responses": "is the WebSocket, requested by `talk`",
}


class Tenants(AnswerRules, RecordRules, WorkRules, OperatingRules):
    """Three keys that do all that keys can do, one step after the other; what runs goes on meanwhile."""


def test_a_key_is_a_tenant() -> None:
    """Each rule for each key, once the others have something of each kind."""
    machine = Tenants()
    try:
        for who in range(3):
            machine.keep(who=who, model=0, topic=who)
            machine.converse(who=who, other=(who + 2) % 3, number=0, add=False)
            for past in range(3):
                machine.respond(who=who, model=past, topic=who, past=past, number=0, stream=bool(past))
            machine.run_behind(who=who, other=(who + 1) % 3, number=0, end=who == 0)
        for who in range(3):
            pair = {"who": who, "other": (who + 1) % 3}
            machine.load(who=who, adapter="annsadapter")
            machine.models(who=who, anthropic=who == 1)
            machine.count(who=who, model=1)
            machine.look(who=who)
            for api in range(3):
                machine.generate(who=who, model=1, topic=3, api=api, stream=who == 1)
            machine.seal(**pair, compact=True)
            machine.probe(**pair, number=0, query=who)
            machine.borrow(**pair, number=0)
            machine.refer(**pair, number=0, stream=who == 1)
            machine.talk(**pair, number=0, kept=who == 1)
            machine.leave(who=who, stream=who == 1)
            machine.crowd(who=who, behind=who == 1, both=who == 2)
        for who in range(3):
            machine.lists(who=who, number=0)
            for operation in OWNED:
                machine.use(who=who, operation=operation, number=1, stream=who == 1)
        assert not PATHS.keys() - machine.world.asked.keys() - SELF.keys()
    finally:
        machine.teardown()


@pytest.mark.long
def test_a_key_stays_a_tenant_for_two_thousand_steps() -> None:
    chosen = settings(
        phases=[Phase.generate],  # Steps that run beside each other shrink badly.
        max_examples=20,
        stateful_step_count=100,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        derandomize=not EXPLORED,
    )
    run_state_machine_as_test(Tenants, settings=chosen)


def test_every_operation_is_driven() -> None:
    assert DRIVEN | SELF.keys() == PATHS.keys()
    assert not DRIVEN & SELF.keys()
    nothing: Any = None
    handlers = [*page_routes(nothing, nothing, nothing, nothing, nothing, False), responses_socket]
    assert {path for handler in handlers for path in handler.paths} == OTHER_ROUTES.keys()
    changing = {name for name in OWNED if PATHS[name].method == "POST"}
    assert changing == CHANGES.keys()
