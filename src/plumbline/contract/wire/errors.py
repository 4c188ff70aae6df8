"""Define the API's errors, with the texts and codes that OpenAI's service uses.

Raise an `ApiError` anywhere below a route. The server answers with its status and `envelope(error)` (ERR-01). Clients
match on text, code, status and `param`, so one constructor sets all four (ERR-04).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

__all__ = [
    "ApiError",
    "completion_not_found",
    "context_length_exceeded",
    "context_too_large",
    "conversation_locked",
    "conversation_not_found",
    "engine_died",
    "engine_unavailable",
    "envelope",
    "error_object",
    "from_status",
    "integer_above_max_value",
    "integer_below_min_value",
    "invalid_admin_key",
    "invalid_api_key",
    "invalid_json_schema",
    "invalid_request",
    "invalid_type",
    "invalid_value",
    "item_not_found",
    "json_type",
    "listed",
    "missing_required_parameter",
    "model_not_found",
    "model_not_loaded",
    "no_admin_keys",
    "no_store",
    "previous_response_not_found",
    "prompt_not_found",
    "rate_limited",
    "response_not_found",
    "server_error",
    "store_unavailable",
    "too_many_stored",
    "unknown_parameter",
    "unparsable_body",
    "unsupported_operation",
    "unsupported_parameter",
    "unsupported_value",
]

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


class ApiError(Exception):
    """A failure that becomes an error response: a status and the four keys of the envelope."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str = INVALID_REQUEST,  # noqa: A002 - the key of the envelope
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def __repr__(self) -> str:
        return f"ApiError({self.status}, {self.message!r}, {self.type!r}, {self.param!r}, {self.code!r})"


def error_object(error: ApiError) -> dict[str, str | None]:
    """Return the value of the envelope's `error` key; all four keys, null where empty (ERR-01)."""
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def envelope(error: ApiError) -> bytes:
    """Return the body of an error response."""
    return msgspec.json.encode({"error": error_object(error)})


# Mistakes in the request: 400


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400 with any text, where no constructor below fits."""
    return ApiError(400, message, INVALID_REQUEST, param, code)


def unparsable_body(reason: str) -> ApiError:
    """Return the 400 for malformed JSON (HTTP-07)."""
    return invalid_request(
        "We could not parse the JSON body of your request. "
        f"The body must be one JSON object in UTF-8 ({reason})."
    )


def missing_required_parameter(param: str) -> ApiError:
    if param == "model":  # ERR-06: OpenAI's service uses another text, without param and code.
        return invalid_request("you must provide a model parameter")
    return invalid_request(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def unknown_parameter(param: str, nearest: str | None = None) -> ApiError:
    hint = "" if nearest is None else f" Did you mean '{nearest}'?"
    return invalid_request(f"Unknown parameter: '{param}'.{hint}", param, "unknown_parameter")


def invalid_type(param: str, expected: str, got: Any) -> ApiError:
    """Return the 400 for a wrong JSON type; `expected` is a phrase such as "an integer", `got` the value."""
    message = f"Invalid type for '{param}': expected {expected}, but got {json_type(got)} instead."
    return invalid_request(message, param, "invalid_type")


def invalid_value(param: str, got: Any, supported: Iterable[str] = ()) -> ApiError:
    values = listed([f"'{value}'" for value in supported], "and")
    hint = f" Supported values are: {values}." if values else ""
    shown = f"'{got}'" if isinstance(got, str) else msgspec.json.encode(got, enc_hook=str).decode()
    return invalid_request(f"Invalid value for '{param}': {_cut(shown)}.{hint}", param, "invalid_value")


def integer_above_max_value(param: str, bound: float, got: float, kind: str = "integer") -> ApiError:
    return invalid_request(
        f"Invalid '{param}': {kind} above maximum value. "
        f"Expected a value <= {_shown(bound)}, but got {_shown(got)} instead.",
        param,
        f"{kind}_above_max_value",
    )


def integer_below_min_value(param: str, bound: float, got: float, kind: str = "integer") -> ApiError:
    return invalid_request(
        f"Invalid '{param}': {kind} below minimum value. "
        f"Expected a value >= {_shown(bound)}, but got {_shown(got)} instead.",
        param,
        f"{kind}_below_min_value",
    )


def unsupported_parameter(param: str, why: str = "is not supported by this server") -> ApiError:
    return invalid_request(f"Unsupported parameter: '{param}' {why}.", param, "unsupported_parameter")


def unsupported_value(param: str, got: Any, why: str = "is not supported by this server") -> ApiError:
    return invalid_request(f"Unsupported value: '{param}' {_quoted(got)} {why}.", param, "unsupported_value")


def context_length_exceeded(
    limit: int, prompt_tokens: int, output_tokens: int, param: str, limit_param: str
) -> ApiError:
    """Return the 400 for a prompt and output limit beyond the context window (ERR-09).

    Args:
        limit: the tokens of the context window.
        prompt_tokens: those of the prompt.
        output_tokens: those that the request allows for the answer.
        param: the field of the prompt; it is too long if no token of an answer fits after it.
        limit_param: the field of the output limit, which is too large otherwise.
    """
    window = f"This model's maximum context length is {limit} tokens. However, your"
    room = limit - prompt_tokens
    if room < 1:
        message = f"{param} resulted in {prompt_tokens} tokens. Please reduce the length of the {param}."
    else:
        message = (
            f"{param} resulted in {prompt_tokens} tokens, and '{limit_param}' asks for {output_tokens} more. "
            f"Please set '{limit_param}' to at most {room}, or reduce the length of the {param}."
        )
        param = limit_param
    return invalid_request(f"{window} {message}", param, "context_length_exceeded")


def invalid_json_schema(param: str, name: str, why: str) -> ApiError:
    """Return the 400 for a schema (SO-03); `param` is its field, such as `response_format`."""
    where = param.split(".")[0].split("[")[0]
    return invalid_request(f"Invalid schema for {where} '{name}': {why}.", param, "invalid_json_schema")


def previous_response_not_found(response_id: str) -> ApiError:
    """Return the 400 for an unknown `previous_response_id` (ST-05)."""
    return invalid_request(
        f"Previous response with id '{_cut(response_id)}' not found.",
        "previous_response_id",
        "previous_response_not_found",
    )


# Keys, names and load: 401, 404, 429


def invalid_api_key() -> ApiError:
    message = "Incorrect API key provided. Send the key as 'Authorization: Bearer KEY'."
    return ApiError(401, message, INVALID_REQUEST, None, "invalid_api_key", {"WWW-Authenticate": "Bearer"})


def invalid_admin_key() -> ApiError:
    """Return the 401 for a wrong or missing admin key."""
    message = (
        "Incorrect admin key provided. Send the key as 'x-admin-key: KEY' or 'Authorization: Bearer KEY'."
    )
    return ApiError(401, message, INVALID_REQUEST, None, "invalid_api_key", {"WWW-Authenticate": "Bearer"})


def no_admin_keys() -> ApiError:
    """Return the 403 for an operation of admins, on a server without admin keys."""
    return ApiError(
        403,
        "Requests cannot load or unload anything: this server has no admin key. Start it with --admin-api-key-file.",
        INVALID_REQUEST,
        None,
        "unsupported_operation",
    )


_MAX_NAMES = 10
"""Names of models in a message."""


def model_not_found(model: str, known: Sequence[str] = ()) -> ApiError:
    """Return the 404 for an unknown model (MOD-03, ERR-06); it lists the first of the known ones, if any are given."""
    message = f"The model `{_cut(model)}` does not exist or you do not have access to it."
    if known:
        more = f" and {len(known) - _MAX_NAMES} more" if len(known) > _MAX_NAMES else ""
        message += f" This server has {', '.join(known[:_MAX_NAMES])}{more}."
    return ApiError(404, message, INVALID_REQUEST, None, "model_not_found")


def prompt_not_found(prompt_id: str, version: str | None = None) -> ApiError:
    """Return the 404 for an unknown prompt template, or an unknown version of one."""
    which = "" if version is None else f" and version '{_cut(version)}'"
    param = "prompt.id" if version is None else "prompt.version"
    return ApiError(
        404,
        f"Prompt with id '{_cut(prompt_id)}'{which} not found.",
        INVALID_REQUEST,
        param,
        "prompt_not_found",
    )


def response_not_found(response_id: str) -> ApiError:
    """Return the 404 for an unknown response (ST-03)."""
    return ApiError(
        404, f"Response with id '{_cut(response_id)}' not found.", INVALID_REQUEST, "response_id", None
    )


def completion_not_found(completion_id: str) -> ApiError:
    """Return the 404 for an unknown chat completion (CHAT-16)."""
    return ApiError(
        404,
        f"Chat completion with id '{_cut(completion_id)}' not found.",
        INVALID_REQUEST,
        "completion_id",
        None,
    )


def conversation_not_found(conversation_id: str, param: str = "conversation_id") -> ApiError:
    """Return the 404 for an unknown conversation (ST-09)."""
    return ApiError(
        404, f"Conversation with id '{_cut(conversation_id)}' not found.", INVALID_REQUEST, param, None
    )


def item_not_found(item_id: str) -> ApiError:
    """Return the 404 for an unknown item of a conversation (ST-09)."""
    return ApiError(404, f"Item with id '{_cut(item_id)}' not found.", INVALID_REQUEST, "item_id", None)


def conversation_locked(conversation_id: str) -> ApiError:
    """Return the 409 for a conversation that another request is working on."""
    return ApiError(
        409,
        f"Another request is working on the conversation '{_cut(conversation_id)}'. Try again when it has ended.",
        INVALID_REQUEST,
        "conversation",
        "conversation_locked",
        {"Retry-After": "1"},
    )


def no_store() -> ApiError:
    """Return the 404 for operations on stored objects, on a server without a store."""
    return ApiError(
        404, "This server stores nothing: it was started with --store none.", code="unsupported_operation"
    )


def unsupported_operation(operation: str) -> ApiError:
    """Return the 404 for an operation of the contract that this server does not have."""
    message = f"The operation '{operation}' is not supported by this server."
    return ApiError(404, message, INVALID_REQUEST, None, "unsupported_operation")


def store_unavailable() -> ApiError:
    """Return the 503 for a store that cannot be used; the reason may have a path or an address and is in the log."""
    return ApiError(
        503,
        "The response store cannot be used at the moment; the server's log says why. Send the request again, or "
        "'store': false to continue without it.",
        SERVER_ERROR,
        None,
        "store_unavailable",
    )


def context_too_large() -> ApiError:
    """Return the 400 for a request that continues more stored bytes than the server reads."""
    return invalid_request(
        "The stored items that this request continues are too large together. Begin a new conversation with a summary.",
        "input",
        "context_too_large",
    )


def too_many_stored(what: str, limit: int) -> ApiError:
    """Return the 429 for a key that has stored as much as it may. Clients need not try again.

    Args:
        what: what is limited, `responses` or `bytes`.
        limit: how many there may be.
    """
    kinds = "some" if what == "responses" else "responses, conversations or chat completions"
    return ApiError(
        429,
        f"This key has {limit} stored {what}, the most that this server keeps for it. Delete {kinds}, or send "
        "'store': false.",
        "requests",
        "store",
        f"stored_{what}_limit_reached",
        {"x-should-retry": "false"},
    )


def rate_limited(message: str, retry_after: int = 1) -> ApiError:
    """Return the 429 for a full queue; `retry_after` is in seconds, at least one (HTTP-05)."""
    seconds = str(max(1, retry_after))
    return ApiError(429, message, "rate_limit_error", None, "rate_limit_exceeded", {"Retry-After": seconds})


# Failures of the server: 5xx


def server_error(message: str = "The server had an error while processing your request.") -> ApiError:
    """Return a 500 without stack traces or paths: those belong in the log, under the request id (ERR-13)."""
    return ApiError(500, message, SERVER_ERROR, None, None)


def engine_unavailable(message: str = "The engine is not ready.", retry_after: int = 1) -> ApiError:
    """Return the 503 for a request that may succeed in `retry_after` seconds."""
    headers = {"Retry-After": str(retry_after)}
    return ApiError(503, message, SERVER_ERROR, None, "engine_unavailable", headers)


def engine_died(message: str) -> ApiError:
    """Return the 503 for an answer whose engine has ended under it; another one is there in seconds."""
    return ApiError(503, message, SERVER_ERROR, None, "engine_died", {"Retry-After": "1"})


def model_not_loaded(message: str) -> ApiError:
    """Return the 503 for a model that could not be loaded. Official clients would try again at once, in vain."""
    return ApiError(503, message, SERVER_ERROR, None, "engine_unavailable", {"x-should-retry": "false"})


def from_status(status: int, message: str, headers: Mapping[str, str] | None = None) -> ApiError:
    """Wrap a failure of the framework (404, 405, 413, …) in the API's envelope (HTTP-08, ERR-03)."""
    return ApiError(status, message, SERVER_ERROR if status >= 500 else INVALID_REQUEST, headers=headers)


# Phrases


def json_type(value: Any) -> str:
    """Name the JSON type of a value as OpenAI's service does: "an integer", "a string"."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def listed(words: list[str], conjunction: str) -> str:
    """Join words as English does: "a", "a or b", "a, b, or c"."""
    if len(words) < 3:
        return f" {conjunction} ".join(words)
    return f"{', '.join(words[:-1])}, {conjunction} {words[-1]}"


def _shown(number: float) -> str:
    return msgspec.json.encode(int(number) if number == int(number) else number).decode()


def _cut(text: str) -> str:
    """Shorten a value from the client before it is sent back."""
    return text if len(text) <= 200 else text[:200] + "…"


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return f"'{text[:200]}'"
