"""Run schemathesis in pytest without sockets: all phases on our server, chains of links on the reference.

Our server stores no responses, so links need the reference. `nox -s fuzz` runs the command line on our server, with all
boundaries of all schemas.
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
"""Without `negative_data_rejection`, because servers may ignore unknown fields (HTTP-09)."""
SMALL = {
    "/v1/models",
    "/v1/models/{model}",
    "/health",
    "/version",
    "/detokenize",
    "/v1/responses/{response_id}",
}
SMALL |= {"/v1/responses/{response_id}/cancel", "/v1/responses/{response_id}/input_items"}
"""Operations with few boundaries; the command line tests all."""
FEW = settings(
    max_examples=3,
    deadline=None,
    database=None,
    derandomize=True,
    # Without shrinking, which takes minutes for a failing chain.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def read(server: Any, *, coverage: bool) -> Any:
    """Return the contract with the server to test."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app())
    schema.app = server
    schema.config.max_stream_events = 100_000
    schema.config.phases.coverage.enabled = coverage
    return schema


SERVER = app()
DRAWN = read(SERVER, coverage=False).exclude(path="/openapi.yaml")
BOUNDED = read(SERVER, coverage=True).include(path=sorted(SMALL))


@pytest.mark.long
@DRAWN.parametrize()  # type: ignore[untyped-decorator]
@FEW
def test_examples_and_random_requests_are_answered_by_the_contract(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)


@BOUNDED.parametrize()  # type: ignore[untyped-decorator]
@FEW
def test_boundaries_are_answered_by_the_contract(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)


class Met:
    """Record which operations on stored responses the application answered."""

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


def chains(server: Any, **fields: Any) -> type[Any]:
    """Return the state machine: links lead from a response to getting, listing items, cancelling and deleting.

    Args:
        server: the application to test.
        fields: further fields of the request that creates a response. It is always the same one: hypothesis needs the
            same draws to lead to the same steps, and links depend on the status.
    """
    schema = read(server, coverage=False).include(path_regex="^/v1/responses")

    @schema.hook  # type: ignore[untyped-decorator]
    def map_body(context: Any, body: Any) -> Any:
        if context.operation.path != "/v1/responses":
            return body
        return {"model": MODEL, "input": "Hi", "max_output_tokens": 16, **fields}

    class Machine(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": {"authorization": f"Bearer {KEY}"}}

        def validate_response(self, response: Any, case: Any, **options: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    return Machine


STEPS = settings(FEW, max_examples=8, stateful_step_count=6)


def test_chains_of_links_work_on_our_server() -> None:
    chains(app(), temperature=0).run(settings=STEPS)


def test_every_link_leads_somewhere_on_the_reference() -> None:
    met = Met(application())

    chains(met, store=True).run(settings=settings(STEPS, max_examples=20))

    assert met.answered >= {("POST", ""), ("GET", ""), ("DELETE", ""), ("GET", "input_items")}


def test_a_broken_server_is_found_along_the_links() -> None:
    """A chain fails for a server that confirms the deletion of a different id."""
    inner = application()

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        async def changed(message: Any) -> None:
            if scope.get("method") == "DELETE" and message["type"] == "http.response.body":
                message = {**message, "body": message["body"].replace(b'"deleted": true', b'"deleted": 1')}
            await send(message)

        await inner(scope, receive, changed)

    with pytest.raises((FailureGroup, ExceptionGroup)):
        chains(broken, store=True).run(settings=STEPS)
