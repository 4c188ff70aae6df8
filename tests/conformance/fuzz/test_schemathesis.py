"""schemathesis inside pytest, without a socket: its phases on our server, and its chains of links on the reference.

Our server keeps no responses yet, so that no link leads anywhere on it; on the reference all of them do. `nox -s fuzz`
runs the command line on our server, with every boundary of every schema.
"""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from example_servers.good_server import app
from example_servers.reference import application
from example_servers.reference.names import KEY, MODEL
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
"""Not `negative_data_rejection`: an unknown field is data that the schema does not have, and is ignored (HTTP-09)."""
SMALL = {
    "/v1/models",
    "/v1/models/{model}",
    "/health",
    "/version",
    "/detokenize",
    "/v1/responses/{response_id}",
}
SMALL |= {"/v1/responses/{response_id}/cancel", "/v1/responses/{response_id}/input_items"}
"""Operations with few boundaries; the command line goes through all of them."""
FEW = settings(
    max_examples=3,
    deadline=None,
    database=None,
    derandomize=True,
    # Shrinking takes minutes where a chain fails, and a failure is as true without it.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def read(server: Any, *, coverage: bool) -> Any:
    """The contract, and the server that it is held against."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app())
    schema.app = server
    schema.config.max_stream_events = 100_000
    schema.config.phases.coverage.enabled = coverage
    return schema


SERVER = app()
DRAWN = read(SERVER, coverage=False).exclude(path="/openapi.yaml")
BOUNDED = read(SERVER, coverage=True).include(path=sorted(SMALL))


@DRAWN.parametrize()
@FEW
def test_examples_and_random_requests_are_answered_by_the_contract(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)


@BOUNDED.parametrize()
@FEW
def test_boundaries_are_answered_by_the_contract(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)


class Met:
    """An application that remembers which operations of kept responses it has answered."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.answered: set[tuple[str, str]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                parts = scope["path"].removeprefix("/v1/responses").split("/")[2:]
                self.answered.add((scope["method"], "/".join(parts)))
            await send(message)

        await self._inner(scope, receive, noted)


def chains(server: Any, *, model: str | None = None) -> type[Any]:
    """The state machine: links of the contract lead from a response to its fetching, items, cancelling and deleting."""
    schema = read(server, coverage=False).include(path_regex="^/v1/responses")

    if model is not None:

        @schema.hook
        def map_body(context: Any, body: Any) -> Any:
            """What is made has to be kept, or no link leads anywhere."""
            if context.operation.path != "/v1/responses":
                return body
            return {"model": model, "input": "Hi", "max_output_tokens": 16, "store": True}

    class Machine(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": {"authorization": f"Bearer {KEY}"}}

        def validate_response(self, response: Any, case: Any, **options: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    return Machine


STEPS = settings(FEW, max_examples=8, stateful_step_count=6)


def test_chains_of_links_work_on_our_server() -> None:
    chains(app()).run(settings=STEPS)


def test_every_link_leads_somewhere_on_the_reference() -> None:
    met = Met(application())

    chains(met, model=MODEL).run(settings=settings(STEPS, max_examples=25))

    assert met.answered >= {("POST", ""), ("GET", ""), ("DELETE", ""), ("GET", "input_items")}


def test_a_broken_server_is_found_along_the_links() -> None:
    """The chains can fail: a server that says that it deleted something else."""
    inner = application()

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        async def changed(message: Any) -> None:
            if scope.get("method") == "DELETE" and message["type"] == "http.response.body":
                message = {**message, "body": message["body"].replace(b'"deleted": true', b'"deleted": 1')}
            await send(message)

        await inner(scope, receive, changed)

    with pytest.raises((FailureGroup, ExceptionGroup)):
        chains(broken, model=MODEL).run(settings=STEPS)
