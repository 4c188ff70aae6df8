"""Build the routes of Litestar once for all applications of a process.

Litestar takes 40 ms of CPU to register the routes, and nearly every test of the server makes an application. The routes
are always the same; what differs is the state, the service, the handlers of the page and the lifespan. So an
application here is a shallow copy of one that has the routes, and its routes look these four up in the application that
handles the request. Tests that start a process still register the routes of each application.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from typing import Any
from unittest.mock import patch

from litestar import Litestar
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.types import Scope

from plumbline.contract._generated.routes import ROUTE_HANDLERS
from plumbline.server import app as product

__all__ = ["create_app"]

_FIXED = len(ROUTE_HANDLERS) + 1
"""Handlers that belong to no application: those of the operations and of the WebSocket. Those of the page follow."""


class _Copy(product._Litestar):
    """An application with the routes of another."""

    __slots__ = ("page", "paths", "same", "service")

    same: dict[str, Any]
    paths: list[frozenset[str]]
    page: list[Callable[..., Any]]
    service: Callable[[], Any]


_with_routes: dict[tuple[int, int], _Copy] = {}
"""The applications that others are copies of, by the number of routes and the size limit of bodies."""


def create_app(*arguments: Any) -> product.Application:
    """Build the ASGI application; see `plumbline.server.app.create_app`."""
    copies: list[Litestar] = []

    def copied(**given: Any) -> Litestar:
        copies.append(_litestar(**given))
        return copies[-1]

    with patch.object(product, "_Litestar", copied):
        made = product.create_app(*arguments)
    assert copies, "the application has registered routes of its own"
    return made


def _litestar(
    *,
    route_handlers: Sequence[Any],
    dependencies: dict[str, Provide],
    lifespan: list[Any],
    state: Any,
    request_max_body_size: int,
    **same: Any,
) -> Litestar:
    """Return what `_Litestar` of the product would with these arguments, if `same` never differs."""
    assert {*dependencies} == {"api"}
    assert {*same} == {"exception_handlers", "openapi_config", "logging_config"}, (
        "do copies share the new argument?"
    )
    key = len(route_handlers), request_max_body_size
    paths = [frozenset(handler.paths) for handler in route_handlers[_FIXED:]]
    given = {
        **same,
        "exception_handlers": {**same["exception_handlers"]},
    }  # Litestar adds one to those it gets.
    if key not in _with_routes:
        page = (_of_the_page(index, handler) for index, handler in enumerate(route_handlers[_FIXED:]))
        _with_routes[key] = _Copy(
            route_handlers=[*route_handlers[:_FIXED], *page],
            dependencies={"api": Provide(_service, sync_to_thread=False)},
            request_max_body_size=request_max_body_size,
            **same,
        )
        _with_routes[key].same, _with_routes[key].paths = given, paths
    assert (_with_routes[key].same, _with_routes[key].paths) == (given, paths), (
        "a copy would have other routes"
    )
    made = copy(_with_routes[key])
    made.page = [handler.fn for handler in route_handlers[_FIXED:]]
    made.service = dependencies["api"].dependency
    made.state = state
    made._lifespan_managers = lifespan
    made.event_emitter = type(made.event_emitter)(listeners=[])
    made.asgi_router = copy(made.asgi_router)
    made.asgi_router.app = made
    return made


def _service(scope: Scope) -> Any:
    return scope["litestar_app"].service()  # type: ignore[attr-defined]


def _of_the_page(index: int, handler: HTTPRouteHandler) -> HTTPRouteHandler:
    """Return a handler that calls the one at the same place in the application of the request."""

    @wraps(handler.fn)
    async def called(**arguments: Any) -> Any:
        return await arguments["request"].app.page[index](**arguments)

    forwarding = copy(handler)
    forwarding._fn = called
    return forwarding
