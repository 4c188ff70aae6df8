"""Build the ASGI application: generated routes, one service, error handlers that answer in the API's envelope."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Protocol

from litestar import Litestar, Request
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.response import Response
from litestar.routes import HTTPRoute
from litestar.types import ControllerRouterHandler

from plumbline.answer.structured_output.arguments import ArgumentsChecker
from plumbline.answer.text.templates.workers import TemplateWorkers
from plumbline.contract._generated.routes import ROUTE_HANDLERS
from plumbline.contract.wire.call import note_error
from plumbline.contract.wire.error_forms import ANTHROPIC_VERSION, error_answer
from plumbline.contract.wire.errors import ApiError, from_status, server_error, unparsable_body
from plumbline.contract.wire.incoming import LENIENT, STRICT, as_sent
from plumbline.contract.wire.large_bodies import LARGE_BODIES, LargeBodies
from plumbline.contract.wire.names.unknown_paths import advice
from plumbline.server.generation import Generation
from plumbline.server.http.failures import as_api_error
from plumbline.server.http.middleware.access_log import AccessLog
from plumbline.server.http.middleware.answers import WholeAnswer
from plumbline.server.http.middleware.cors import Cors, cors_config
from plumbline.server.http.middleware.forwarder import Forwarder
from plumbline.server.http.middleware.front import Front
from plumbline.server.http.middleware.origins import Origins
from plumbline.server.http.replies import Replies
from plumbline.server.limits.access import Access
from plumbline.server.limits.claims.names import LocalClaims
from plumbline.server.limits.claims.shared import SharedClaims
from plumbline.server.limits.draining import DRAINING, Draining
from plumbline.server.limits.held_bytes import ByteBudget
from plumbline.server.limits.keys import KEYS
from plumbline.server.limits.rates import RATES
from plumbline.server.loading.catalog import Catalog
from plumbline.server.loading.prompts import load_prompts
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.media.load import MediaLoader
from plumbline.server.models import Models
from plumbline.server.observe.metrics import Metrics, ModelMetrics
from plumbline.server.observe.recent import RecentRequests
from plumbline.server.observe.request_log import RequestLog
from plumbline.server.page.judge import PageJudge
from plumbline.server.page.routes import OPEN_PATHS, page_routes
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.remote_access import RemoteAccess
from plumbline.server.responses.background import BackgroundRuns
from plumbline.server.responses.leases import leasing
from plumbline.server.responses.memory import Memory
from plumbline.server.service import ModelService, PlumblineService
from plumbline.server.settings import Settings
from plumbline.server.store.interface import Store
from plumbline.server.websocket import responses_socket

__all__ = ["Application", "create_app"]

_log = logging.getLogger("plumbline.server")

_PHRASES = {
    400: "The request could not be understood.",
    404: "There is no such path: {method} {path}.",
    405: "The method {method} is not allowed for {path}.",
    413: "The request body is too large.",
}

_WAITING = 2048
"""Prompts that may wait to be rendered, also of requests that wait for no engine."""
_LEFT = "client disconnected prematurely"
"""What Litestar's error says, a 500, of a client that leaves before its whole body has come."""


class _Layer(Protocol):
    """What surrounds the application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one connection event of an ASGI server."""
        ...

    def refuse(self, scope: Any) -> WholeAnswer | None:
        """See `WholeAnswer`."""
        ...


class _Litestar(Litestar):
    """Litestar without its plugins for pydantic and attrs, which no route uses: their imports take 0.1 s and 10 MB."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]

    def register(self, value: ControllerRouterHandler) -> None:  # type: ignore[override]
        """Add a handler. Litestar's answer to OPTIONS names the methods that the path had when it was made."""
        for route in self.routes:
            if isinstance(route, HTTPRoute) and route.path in getattr(value, "paths", ()):
                route.route_handlers = [h for h in route.route_handlers if h.http_methods != {"OPTIONS"}]
        super().register(value)


class Application:
    """The ASGI application, and the models that it serves."""

    def __init__(
        self,
        asgi: _Layer,
        models: Models[ModelService],
        draining: Draining,
        access: Access,
        budget: ByteBudget,
    ) -> None:
        self._asgi = asgi
        self.models = models
        self.draining = draining
        self.access = access
        self.budget = budget
        """The bytes of heads, bodies and messages."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one connection event of an ASGI server."""
        await self._asgi(scope, receive, send)

    def refuse(self, scope: Any) -> WholeAnswer | None:
        """Answer a request that no model has room for; see `WholeAnswer`."""
        return self._asgi.refuse(scope)


def create_app(
    catalog: Catalog, settings: Settings, store: Store | None = None, shared: SharedClaims | None = None
) -> Application:
    """Build the ASGI application.

    Args:
        catalog: the models to serve; the lifespan of the application starts those that are loaded, and stops all.
        settings: the settings.
        store: where responses are kept; also started and stopped by the lifespan. None keeps nothing.
        shared: the claims of all API servers of the engine, also started and stopped by the lifespan; None if this is
            the only API server.
    """
    tracing = None
    if settings.otlp_traces_endpoint:
        # OpenTelemetry is optional, and takes a while to import.
        from plumbline.server.http.middleware.traces import Traces
        from plumbline.server.observe.traces import Tracing, traced_store

        tracing = Tracing.to(settings.otlp_traces_endpoint)
        store = None if store is None else traced_store(store)
    claims = LocalClaims() if shared is None else shared
    budget = ByteBudget.for_messages(settings.max_body_bytes)
    metrics = Metrics(store)
    replies = Replies(settings, metrics)
    media = MediaLoader(settings)
    templates = TemplateWorkers(max(_WAITING, 2 * settings.max_num_waiting))
    checker = ArgumentsChecker()
    metrics.watch(messages=budget, files=media.memory)
    remote = RemoteAccess(settings)
    draining = Draining()
    access = Access(settings, shared)
    rates = access.rates
    runs = BackgroundRuns(settings.max_num_waiting, claims, draining)
    sealer = Sealer(settings.sealing_key)
    memory = None if store is None else Memory(store, access.keys, claims)

    def build(model: ServedModel, counts: ModelMetrics) -> ModelService:
        generation = Generation(
            model, settings, counts, replies, media, rates, templates, checker, access.keys
        )
        return ModelService(generation, sealer, memory, runs, remote)

    models = Models(catalog, settings, metrics, replies, access.keys, build)
    prompts = load_prompts(settings.prompts)
    service = PlumblineService(models, settings, metrics, replies, memory, runs, prompts, access)

    recent = RecentRequests()
    judge = PageJudge()
    page = page_routes(models, settings, access, recent, judge, memory is not None) if settings.page else ()

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as stack:
            if tracing is not None:
                stack.push_async_callback(tracing.close)
            if memory is not None:
                await stack.enter_async_context(leasing(memory.store, runs))
                if not settings.sealing_key:
                    sealer.use(await memory.store.secret("reasoning"))
            stack.push_async_callback(templates.close)
            stack.push_async_callback(checker.close)
            stack.push_async_callback(media.close)
            stack.push_async_callback(models.close)
            stack.push_async_callback(judge.stop)
            await models.start()
            if shared is not None:
                await shared.start()
                stack.push_async_callback(shared.stop)
            stack.push_async_callback(runs.stop)
            yield

    app = _Litestar(
        route_handlers=[*ROUTE_HANDLERS, responses_socket, *page],
        dependencies={"api": Provide(lambda: service, sync_to_thread=False, use_cache=True)},
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            RecursionError: _too_deep,
            Exception: _other_error,
        },
        lifespan=[lifespan],
        openapi_config=None,
        request_max_body_size=settings.max_body_bytes,
        logging_config=None,
        state=State(
            {
                STRICT: settings.strict,
                LENIENT: settings.lenient,
                LARGE_BODIES: LargeBodies(),
                KEYS: access.keys,
                RATES: rates,
                DRAINING: draining,
            }
        ),
    )
    served: Any = app if shared is None else Forwarder(app, shared)  # type: ignore[arg-type]
    if settings.enable_log_requests or settings.enable_log_outputs:
        served = RequestLog(served, outputs=settings.enable_log_outputs, max_chars=settings.max_log_len)
    cors = cors_config(settings.cors_origins)
    front = Front(
        served,
        keys=access.keys,
        rates=rates,
        admin_keys=access.admin_keys,
        metrics=metrics,
        max_body_bytes=settings.max_body_bytes,
        body_timeout=settings.body_timeout,
        open_paths=frozenset(settings.public) | (OPEN_PATHS if settings.page else frozenset()),
        recent=recent,
        draining=draining,
        full=models.refusal,
        origins=Origins(cors, None if settings.uds else (settings.host, *settings.allowed_hosts)),
        budget=budget,
    )
    inner = Cors(front, cors) if settings.cors_origins else front
    outer: _Layer = AccessLog(inner, access.keys) if settings.access_log else inner
    if tracing is not None:
        outer = Traces(outer, tracing)
    return Application(outer, models, draining, access, budget)


def _respond(
    request: Request[Any, Any, Any], error: ApiError, cause: Exception | None = None
) -> Response[bytes]:
    """Answer with an error; one of the server has a line in the log, with the traceback of its cause if that is new."""
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        named = request.scope["state"].get("request_id")
        trace = cause and (type(cause), cause, cause.__traceback__)
        _log.error("request %s: status %d: %s", named, error.status, error.message, exc_info=trace)
    note_error(request.scope["state"], error)
    status, body = error_answer(
        error,
        request.url.path,
        request.scope["state"].get("request_id"),
        is_anthropic=ANTHROPIC_VERSION in request.headers,
    )
    return Response(body, status_code=status, headers=error.headers, media_type="application/json")


def _api_error(request: Request[Any, Any, Any], error: ApiError) -> Response[bytes]:
    return _respond(request, as_sent(error, request))


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Answer the framework's errors: unknown path, wrong method, body too large."""
    if (
        error.detail == _LEFT
    ):  # Nobody reads the answer, but the log and the metrics must not blame the server.
        return _respond(request, from_status(HTTPStatus.BAD_REQUEST, "The request body ended early."))
    if error.status_code in _PHRASES:
        message = _PHRASES[error.status_code].format(method=request.method, path=request.url.path)
        if error.status_code == HTTPStatus.NOT_FOUND:
            message += advice(request.url.path)
    else:
        message = error.detail if error.status_code < 500 else server_error().message
    allowed = next((v for name, v in (error.headers or {}).items() if name.lower() == "allow"), "")
    # Litestar counts a WebSocket at the path among the methods.
    methods = [method for method in allowed.split(", ") if method.isupper()]
    headers = {"allow": ", ".join(methods)} if methods else {}
    return _respond(request, from_status(error.status_code, message, headers))


def _too_deep(request: Request[Any, Any, Any], error: RecursionError) -> Response[bytes]:
    """Answer 400: only decoding a deeply nested body exceeds the recursion limit (HTTP-07)."""
    return _respond(request, unparsable_body("it is nested too deeply"))


def _other_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Log the traceback under the request id, and answer a 500 without details (ERR-13); 503 if memory is short."""
    if isinstance(error, MemoryError):
        return _respond(request, as_api_error(error))
    return _respond(request, server_error(), error)
