"""Read settings from the command line, the environment and a configuration file, in this order of precedence."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from plumbline.server.settings.settings import OPTIONS, Settings
from plumbline.server.settings.values import read_bounded, read_value_file, reason_of
from plumbline_conformance.console.options import (
    Option,
    OptionError,
    SettingsError,
    checked,
    from_text,
    shown,
)

__all__ = ["CONFIG_VARIABLE", "Given", "read_settings", "unknown_variables"]

CONFIG_VARIABLE = "PLUMBLINE_CONFIG"
"""The environment variable that names the configuration file."""
_MAX_NAMES = 5
"""Unknown names in a message."""
_MAX_NAME = 60
"""Characters of an unknown name that needs no quotes."""
_OTHER_VARIABLES = frozenset(
    f"PLUMBLINE_{name}"
    for name in (
        # Of the kernels and the judge.
        *("CONFIG", "FORCE_TRITON", "SCHEMATHESIS_KEY"),
        # Of the tests.
        *(
            "ALIAS",
            "DIALECTS",
            "ENGINES",
            "EXAMPLES",
            "LAWS",
            "PROFILE",
            "RESETS",
            "RUNS",
            "SCHEMAS",
            "SEEDS",
        ),
        *("TEST_ENGINE", "TEST_MODEL", "TOKENIZER"),
    )
)


class Given(msgspec.Struct, frozen=True):
    """Settings, and where each value that was given comes from."""

    settings: Settings
    origins: dict[str, str]
    """By the label of an option, such as `--port`: `--port`, `PLUMBLINE_PORT` or `port in plumbline.toml`."""


class _Value(msgspec.Struct, frozen=True):
    """A value that a source gives."""

    value: Any
    origin: str


_Source = dict[str, _Value]
"""What one source gives, by the name of the option. Values are not checked yet."""


def read_settings(arguments: Mapping[str, Any], environment: Mapping[str, str], **defaults: str) -> Given:
    """Read all sources. For each option the first source that has it counts, except for API keys, which add up.

    Args:
        arguments: parsed options of the command line, by their names; `config` names the configuration file.
        environment: environment variables.
        defaults: values of fields for which the command has another default than `Settings`; empty texts in the
            sources mean these.

    Raises:
        SettingsError: a value is wrong, or a file cannot be read or has unknown keys; the message names the source.
    """
    sources = [_command_line(arguments), _environment(environment)]
    if arguments.get("config") is not None:
        sources.append(_file(arguments["config"], "--config"))
    elif environment.get(CONFIG_VARIABLE):
        sources.append(_file(environment[CONFIG_VARIABLE], CONFIG_VARIABLE))
    values: dict[str, Any] = dict(defaults)
    origins: dict[str, str] = {}
    for option in OPTIONS:
        found = list(chain.from_iterable(_values(option, source) for source in sources))
        if not found:
            continue
        origins[option.label] = found[0].origin
        if option.about.adds:
            values[option.field] = tuple(dict.fromkeys(chain.from_iterable(each.value for each in found)))
        elif found[0].value != "" or option.field not in defaults:
            values[option.field] = found[0].value
    try:
        return Given(Settings(**values), origins)
    except OptionError as error:
        raise error.at(origins) from None


def unknown_variables(environment: Mapping[str, str]) -> str:
    """Return a line about `PLUMBLINE_` variables that are no options, or an empty string."""
    known = set(_OTHER_VARIABLES)
    for option in OPTIONS:
        known.update(
            (option.variable, option.file_option.variable) if option.about.in_file else (option.variable,)
        )
    unknown = sorted(name for name in environment if name.startswith("PLUMBLINE_") and name not in known)
    if not unknown:
        return ""
    return f"ignored environment variables: {_list(unknown, known)}"


def _values(option: Option, source: _Source) -> Iterator[_Value]:
    """Yield the checked values that a source gives for an option: its own, and that of a file that is named."""
    own, named = (
        source.get(option.name),
        source.get(option.file_option.name) if option.about.in_file else None,
    )
    if own is not None and named is not None and not option.about.adds:
        raise OptionError(
            option.label, f"is given twice: leave out {own.origin} or {named.origin}", named.origin
        )
    if own is not None:
        yield _Value(checked(option, own.value, own.origin), own.origin)
    if named is not None:
        path = checked(option.file_option, named.value, named.origin)
        yield _Value(read_value_file(option, path, named.origin), named.origin)


def _command_line(arguments: Mapping[str, Any]) -> _Source:
    found = {}
    for option in _all_options():
        value = arguments.get(option.name)
        if value is not None:
            value = from_text(option, value) if isinstance(value, str) else value
            found[option.name] = _Value(value, option.flag)
    return found


def _environment(environment: Mapping[str, str]) -> _Source:
    found = {}
    for option in _all_options():
        text = environment.get(option.variable, "")
        if text.startswith("tcp://"):
            raise OptionError(
                option.label,
                "is the address of a Kubernetes Service named plumbline: rename the Service, or set enableServiceLinks "
                "to false",
                option.variable,
            )
        if text:
            found[option.name] = _Value(from_text(option, text), option.variable)
    return found


def _file(path: str, origin: str) -> _Source:
    """Read a configuration file."""
    label = "--config"
    try:
        values = tomllib.loads(read_bounded(path).decode())
    except UnicodeDecodeError:
        raise OptionError(label, f"names {path}, which is not UTF-8 text", origin) from None
    except tomllib.TOMLDecodeError as error:
        raise OptionError(label, f"names {path}, which is not valid TOML: {error}", origin) from None
    except RecursionError:
        raise OptionError(label, f"names {path}, whose values are nested too deeply", origin) from None
    except (OSError, ValueError) as error:
        raise OptionError(
            "--config", f"names {path}, which cannot be read: {reason_of(error)}", origin
        ) from error
    known = {option.name for option in _all_options()}
    unknown = [name for name in values if name not in known]
    if unknown:
        table = any(isinstance(values[name], dict) for name in unknown)
        hint = "; options stand at the top, not in tables" if table else ""
        raise SettingsError(f"{path} has keys that are not options: {_list(unknown, known)}{hint}")
    return {name: _Value(value, f"{name} in {path}") for name, value in values.items()}


def _all_options() -> Iterator[Option]:
    """Yield all options, those that name a file with a value included."""
    for option in OPTIONS:
        yield option
        if option.about.in_file:
            yield option.file_option


def _list(unknown: list[str], known: set[str]) -> str:
    """Return the first unknown names, each with the nearest known one."""
    found = [_with_nearest(name, known) for name in unknown[:_MAX_NAMES]]
    return ", ".join(found + ["…"] * (len(unknown) > _MAX_NAMES))


def _with_nearest(name: str, known: set[str]) -> str:
    nearest = difflib.get_close_matches(name, known, 1)
    text = name if name.isidentifier() and len(name) < _MAX_NAME else shown(name)
    return f"{text} (did you mean {nearest[0]}?)" if nearest else text
