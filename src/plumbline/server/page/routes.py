"""Define the routes of the page. They are not operations of the contract, and only the page uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody
from litestar.response import Response

from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import decode, encode
from plumbline.contract.wire.errors import ApiError, from_status
from plumbline.server.admission import client_of
from plumbline.server.limits.access import Access
from plumbline.server.models import Models
from plumbline.server.observe.recent import RecentRequests
from plumbline.server.page.controls import controls
from plumbline.server.page.exchange import JudgedExchange, JudgedText
from plumbline.server.page.files import NAMES, SECURITY, VENDOR, PageFile, answer, page_file
from plumbline.server.page.judge import PageJudge
from plumbline.server.page.reference import reference
from plumbline.server.page.status import status_of
from plumbline.server.settings import Settings

__all__ = ["OPEN_PATHS", "page_routes"]

Incoming = Request[Any, Any, Any]

_CONTROLS = "controls.json"
OPEN_PATHS = frozenset({"/", f"/page/{_CONTROLS}", *(f"/page/{name}" for name in NAMES)})
"""Need no key: they are the same for everybody, and the page has to load before it can ask for one."""


def page_routes(
    models: Models[Any],
    settings: Settings,
    access: Access,
    recent: RecentRequests,
    judge: PageJudge,
    stores: bool,
) -> Sequence[HTTPRouteHandler]:
    """Return the handlers of the page.

    Args:
        models: the models of the server.
        settings: the settings.
        access: the keys of requests, and what each may see.
        recent: the latest requests.
        judge: judges the exchanges of the page.
        stores: whether responses are kept.
    """

    @get("/", status_code=200)
    async def index(request: Incoming) -> Response[bytes]:
        if not _takes_html(request.headers.get("accept", "*/*")):
            # A client of the API that was given a wrong base URL must not read a page as its answer.
            raise from_status(404, "There is a page for browsers at GET /; the API begins at /v1.")
        return _file("index.html", request)

    @get("/docs", status_code=200)
    async def docs(request: Incoming) -> Response[bytes]:
        return answer(reference(), request.headers.get("if-none-match"))

    @get(["/page/{name:str}", f"/page/{VENDOR}/{{name:str}}"], status_code=200)
    async def asset(request: Incoming) -> Response[bytes]:
        return _file(request.url.path.partition("/page/")[2], request)

    @get("/page/status", status_code=200)
    async def status(request: Incoming) -> Response[bytes]:
        call = Call.of(request)
        shown = recent if access.oversees(call) else None
        return _json(encode(status_of(models, settings, shown, stores, models.key_of(call))))

    @post("/page/judge", status_code=200)
    async def judge_exchange(body: RawBody, request: Incoming) -> Response[bytes]:
        _check_type(request)
        return _json(await judge.judge(decode(JudgedExchange, body), client_of(Call.of(request), settings)))

    @post("/page/validate", status_code=200)
    async def validate(body: RawBody, request: Incoming) -> Response[bytes]:
        _check_type(request)
        return _json(await judge.judge(decode(JudgedText, body), client_of(Call.of(request), settings)))

    return (index, docs, asset, status, judge_exchange, validate)


def _check_type(request: Incoming) -> None:
    # A form of another site can send any other type without asking, and judging costs CPU.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ApiError(415, "Send the exchange as 'Content-Type: application/json'.")


def _file(name: str, request: Incoming) -> Response[bytes]:
    found: PageFile | None = controls() if name == _CONTROLS else page_file(name)
    if found is None:
        raise from_status(404, f"There is no such path: {request.method} {request.url.path}.")
    return answer(found, request.headers.get("if-none-match"))


def _json(body: bytes) -> Response[bytes]:
    headers = {**SECURITY, "cache-control": "no-store"}
    return Response(body, headers=headers, media_type="application/json")


def _takes_html(accept: str) -> bool:
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    return bool(kinds & {"text/html", "text/*", "*/*"})
