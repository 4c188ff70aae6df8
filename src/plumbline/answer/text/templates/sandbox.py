"""Run chat templates in a sandbox with the names, filters and statements that transformers provides."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from plumbline.answer.text.templates.values import NoContent
from plumbline.base.exact_number import dumps

__all__ = ["template_environment"]


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, in which templates may extend and shorten lists of their own.

    Kimi K2's template keeps the ids of calls in one (`namespace(ids=[])`) until their results come.
    """

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read this attribute."""
        if type(obj) is list and attr in ("append", "pop"):  # Not of the request, which is a `GivenList`.
            return True
        return super().is_safe_attribute(obj, attr, value)


def template_environment() -> ImmutableSandboxedEnvironment:
    """Return a new environment. Templates get JSON values only, so they cannot reach other objects."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    environment.tests["none"] = lambda value: value is None or isinstance(value, NoContent)
    environment.tests["sameas"] = lambda value, other: (
        value is other or (other is None and isinstance(value, NoContent))
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    environment.globals["namespace"] = _Namespace
    return environment


class _Generation(Extension):
    """Support `{% generation %}`, which marks assistant text for training and has no effect on prompts."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> Node:
        """Return the body in a scope of its own: variables set inside are not visible outside."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    """jinja2's namespace without names that begin with an underscore, which transformers refuses too."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"A namespace of a chat template has no attribute {name!r}.")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON. jinja2's own filter escapes HTML, which differs from the training data."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_null
    )
    return dumps(value, encoder)


def _null(value: Any) -> None:
    """Return null content as JSON."""
    if not isinstance(value, NoContent):
        raise TypeError(f"A value of type {type(value).__name__} cannot be written as JSON.")


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
