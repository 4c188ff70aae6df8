"""Fill one of the operator's prompt templates and merge it into a request (`prompt: {id, version, variables}`).

A template is a part of a Responses request. In its `instructions` and `input`, `{{name}}` stands for a variable. Fields
of the request win over the template's; the request's input comes after the template's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from plumbline.contract._generated.content import InputFileContent, InputTextContent
from plumbline.contract._generated.items import EasyInputMessage, InputItem
from plumbline.contract._generated.responses import CreateResponse, Prompt
from plumbline.contract.wire.decode import decode
from plumbline.contract.wire.errors import (
    ApiError,
    invalid_request,
    prompt_not_found,
    unsupported_parameter,
    unsupported_value,
)
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.text_files import FileSource, file_text

__all__ = ["BadTemplateError", "PromptTemplate", "PromptTemplates"]

MAX_FILLED = 16 * 1024 * 1024
"""Characters of a filled template. A variable may stand in many places."""

_FIELDS = frozenset(
    {
        "model",
        "instructions",
        "input",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "temperature",
        "top_p",
        "max_output_tokens",
        "reasoning",
        "text",
    }
)
"""The fields of a request that a template may set."""
_FILLED = ("instructions", "input")
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z0-9_.-]+)\s*\}\}")


class BadTemplateError(ValueError):
    """A template cannot be used; the message states why."""


class PromptTemplate:
    """One version of a template."""

    def __init__(self, version: str, body: bytes) -> None:
        """Read a template.

        Args:
            version: its version.
            body: a JSON object with fields of a Responses request.

        Raises:
            BadTemplateError: the body is not a JSON object, or has fields that a template may not set.
        """
        self.version = version
        try:
            fields = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadTemplateError(f"it is not a JSON object: {error}") from None
        if unknown := sorted(fields.keys() - _FIELDS):
            raise BadTemplateError(
                f"a template cannot set {unknown[0]!r}; it can set {', '.join(sorted(_FIELDS))}"
            )
        self._fields = fields
        texts = list(_strings(fields.get(name) for name in _FILLED))
        self._names = [name for text in texts for name in _PLACEHOLDER.findall(text)]
        self._length = sum(map(len, texts))
        try:
            self._decoded(dict.fromkeys(self._names, "x"))
        except ApiError as error:
            raise BadTemplateError(error.message) from None

    def filled(self, variables: Mapping[str, str]) -> CreateResponse:
        """Return the template as a request.

        Raises:
            ApiError: 400 naming a variable that is missing, or that the template does not have.
        """
        for name in self._names:
            if name not in variables:
                raise invalid_request(
                    f"The prompt has a variable '{name}'. Send it in 'prompt.variables'.",
                    f"prompt.variables.{name}",
                    "missing_required_parameter",
                )
        for name in variables:
            if name not in self._names:
                raise unsupported_parameter(f"prompt.variables.{name}", "is not a variable of this prompt")
        if self._length + sum(len(variables[name]) for name in self._names) > MAX_FILLED:
            raise invalid_request(
                f"The filled prompt would have more than {MAX_FILLED} characters.", "prompt.variables"
            )
        return self._decoded(variables)

    def _decoded(self, variables: Mapping[str, str]) -> CreateResponse:
        changed = {
            name: _replaced(value, variables) if name in _FILLED else value
            for name, value in self._fields.items()
        }
        return decode(CreateResponse, msgspec.json.encode(changed))


class PromptTemplates:
    """All templates of a server."""

    def __init__(self, by_id: Mapping[str, Mapping[str, PromptTemplate]] | None = None) -> None:
        """Keep templates.

        Args:
            by_id: the versions of each template, the latest last; None if the server keeps no templates.
        """
        self._by_id = by_id

    def applied(self, request: CreateResponse) -> CreateResponse:
        """Merge the template that a request names into it; a request without one is returned as it is.

        Raises:
            ApiError: 404 for an unknown template, 400 for variables that do not fit.
        """
        prompt = or_default(request.prompt, None)
        if prompt is None:
            return request
        if self._by_id is None:
            raise unsupported_parameter(
                "prompt", "is not supported: this server was started without --prompts"
            )
        template = self._find(self._by_id, prompt).filled(_texts(prompt))
        changes = {
            name: getattr(template, name)
            for name in _FIELDS
            if getattr(request, name) is UNSET and getattr(template, name) is not UNSET
        }
        if template.input is not UNSET and request.input is not UNSET:
            changes["input"] = [*_items(template.input), *_items(request.input)]
        return msgspec.structs.replace(request, **changes)

    def _find(self, by_id: Mapping[str, Mapping[str, PromptTemplate]], prompt: Prompt) -> PromptTemplate:
        versions = by_id.get(prompt.id)
        if not versions:
            raise prompt_not_found(prompt.id)
        version = or_default(prompt.version, None)
        if version is None:
            return versions[list(versions)[-1]]
        if version not in versions:
            raise prompt_not_found(prompt.id, version)
        return versions[version]


def _texts(prompt: Prompt) -> dict[str, str]:
    """Return the variables of a request as text."""
    found: dict[str, str] = {}
    for name, value in (or_default(prompt.variables, None) or {}).items():
        if isinstance(value, InputTextContent):
            found[name] = value.text
        elif isinstance(value, InputFileContent):
            file = FileSource(value.file_data, value.filename, value.file_id, value.file_url)
            found[name] = file_text(file, f"prompt.variables.{name}")
        elif isinstance(value, str):
            found[name] = value
        else:
            raise unsupported_value(
                f"prompt.variables.{name}", "an image", "is not supported: this server reads text"
            )
    return found


def _items(value: str | list[InputItem] | None) -> list[InputItem]:
    if isinstance(value, str):
        return [EasyInputMessage(role="user", content=value)]
    return value or []


def _strings(values: Iterable[Any]) -> Iterator[str]:
    """Yield all strings in some values, at any depth."""
    for value in values:
        match value:
            case str():
                yield value
            case list():
                yield from _strings(value)
            case dict():
                yield from _strings(value.values())


def _replaced(value: Any, variables: Mapping[str, str]) -> Any:
    """Return a value with the placeholders in its strings replaced once: inserted text is not searched again."""
    match value:
        case str():
            return _PLACEHOLDER.sub(lambda match: variables[match.group(1)], value)
        case list():
            return [_replaced(one, variables) for one in value]
        case dict():
            return {key: _replaced(one, variables) for key, one in value.items()}
        case _:
            return value
