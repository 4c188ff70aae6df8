"""Read query parameters strictly: a wrong one is a 400 that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from litestar import Request

from .errors import (
    ApiError,
    integer_above_max_value,
    integer_below_min_value,
    invalid_type,
    invalid_value,
)

__all__ = ["Query"]


class Query:
    """The query string of one request. Unknown parameters are ignored, as in bodies (HTTP-09)."""

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self._values = values

    @classmethod
    def of(cls, request: Request[Any, Any, Any]) -> Query:
        params = request.query_params
        return cls({name: params.getall(name) for name in params})

    @overload
    def text(self, name: str, *, values: Sequence[str] = ..., default: str) -> str: ...
    @overload
    def text(self, name: str, *, values: Sequence[str] = ..., default: None = ...) -> str | None: ...
    def text(self, name: str, *, values: Sequence[str] = (), default: str | None = None) -> str | None:
        """Return the parameter; one of `values`, if they are given."""
        text = self._one(name)
        if text is None:
            return default
        if values and text not in values:
            raise invalid_value(name, text, values)
        return text

    @overload
    def integer(self, name: str, *, ge: int | None = ..., le: int | None = ..., default: int) -> int: ...
    @overload
    def integer(
        self, name: str, *, ge: int | None = ..., le: int | None = ..., default: None = ...
    ) -> int | None: ...
    def integer(
        self, name: str, *, ge: int | None = None, le: int | None = None, default: int | None = None
    ) -> int | None:
        """Return the parameter as an integer within its bounds."""
        text = self._one(name)
        if text is None:
            return default
        # Python's int() also takes "1_0", " 1" and "١", which no client of this API sends.
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise invalid_type(name, "an integer", text)
        value = int(text)
        if ge is not None and value < ge:
            raise integer_below_min_value(name, ge, value)
        if le is not None and value > le:
            raise integer_above_max_value(name, le, value)
        return value

    @overload
    def boolean(self, name: str, *, default: bool) -> bool: ...
    @overload
    def boolean(self, name: str, *, default: None = ...) -> bool | None: ...
    def boolean(self, name: str, *, default: bool | None = None) -> bool | None:
        """Return the parameter as a boolean: `true` or `false`, nothing else."""
        text = self._one(name)
        if text is None:
            return default
        if text not in ("true", "false"):
            raise invalid_type(name, "a boolean", text)
        return text == "true"

    def several(self, name: str, *, values: Sequence[str] = ()) -> list[str]:
        """Return the values of a repeatable parameter. Official clients write its name with brackets (`include[]=`)."""
        found = [*self._values.get(name, ()), *self._values.get(f"{name}[]", ())]
        for position, value in enumerate(found):
            if values and value not in values:  # ST-18
                raise invalid_value(f"{name}[{position}]", value, values)
        return found

    def pairs(self, name: str, *, most: int) -> dict[str, str]:
        """Return the pairs of a parameter that is written as `name[key]=value`."""
        found: dict[str, str] = {}
        for written in self._values:
            if written.startswith(f"{name}[") and written.endswith("]"):
                found[written[len(name) + 1 : -1]] = self._one(written) or ""
        if len(found) > most:
            raise ApiError(400, f"The parameter '{name}' has more than {most} pairs.", param=name)
        return found

    def _one(self, name: str) -> str | None:
        found = self._values.get(name, ())
        if len(found) > 1:
            raise ApiError(400, f"The parameter '{name}' was sent more than once.", param=name)
        return found[0] if found else None
