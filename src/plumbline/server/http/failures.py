"""Translate the exceptions of the road and the engine into API errors."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from plumbline.answer.road.errors import AbortedError, ConstraintFailedError, EngineDiedError, GenerationError
from plumbline.answer.text.render import UnusedVariableError
from plumbline.answer.text.templates.template import TemplateError
from plumbline.contract.wire.errors import (
    ApiError,
    context_too_large,
    engine_died,
    engine_unavailable,
    invalid_request,
    rate_limited,
    server_error,
    store_unavailable,
    too_many_stored,
)
from plumbline.port.engine import EngineClosedError, EngineFullError, RefusedRequestError
from plumbline.server.store.interface import StoreFullError, StoreUnavailableError, TooLargeError

__all__ = ["FAILURES", "api_errors", "as_api_error", "refused_by_template", "store_errors"]

T = TypeVar("T")

FAILURES = (ApiError, GenerationError, AbortedError, EngineClosedError, EngineFullError, RefusedRequestError)
"""Exceptions that the road and the engine raise by design."""


def refused_by_template(error: TemplateError, param: str) -> ApiError:
    """Return the 400 for a request that the chat template cannot render; `param` is the field of the messages."""
    if isinstance(error, UnusedVariableError):
        return invalid_request(str(error), error.field, "unsupported_parameter")
    return invalid_request(str(error), param)


async def api_errors(work: Awaitable[T]) -> T:
    """Await `work` and raise its failures as API errors."""
    try:
        return await work
    except FAILURES as error:
        raise as_api_error(error) from error


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise the failures of a store as API errors."""
    try:
        yield
    except StoreUnavailableError as error:
        raise store_unavailable() from error
    except TooLargeError:
        raise context_too_large() from None
    except StoreFullError as error:
        raise too_many_stored(error.what, error.limit) from error


def as_api_error(error: Exception) -> ApiError:
    """Return the API error for an exception; a 500 for one that is not raised by design."""
    match error:
        case EngineFullError():
            return rate_limited(str(error), error.retry_after)
        case EngineClosedError():
            return engine_unavailable(str(error), error.retry_after)
        case AbortedError():
            return engine_unavailable(str(error))
        case RefusedRequestError():
            return invalid_request(str(error), error.param, error.code)
        case ApiError():
            return error
        case ConstraintFailedError():
            return invalid_request(str(error), None, "invalid_value")
        case EngineDiedError():
            return engine_died(str(error))
        case GenerationError():
            return server_error(str(error))
        case MemoryError():
            return engine_unavailable("The server has no memory left for this request.")
        case _:
            return server_error()
