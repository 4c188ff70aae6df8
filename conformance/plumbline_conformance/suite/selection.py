"""Select checks by id, prefix, glob pattern or rule, and by profile, level and surface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated

import msgspec

from plumbline_conformance.console.command import OptionGroup
from plumbline_conformance.console.options import Describe, UnusableInput
from plumbline_conformance.suite.aliases import current
from plumbline_conformance.suite.coverage import published, revisions
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS, Check, Scenario

__all__ = ["PROFILES", "Selection", "UnknownChoice", "named", "scenarios_of", "scenarios_that_show"]

_LEVELS = ("MUST", "SHOULD", "MAY")
_OTHER_THAN_CHAT = ("completions", "responses", "state", "websocket", "messages")


class Profile(msgspec.Struct, frozen=True):
    """The checks that a use of a server needs."""

    has: Callable[[Check], bool]
    requires: dict[str, tuple[str, ...]] = {}
    """The capabilities that the profile needs, each with the scenarios that show it. In this profile they are core."""


PROFILES: dict[str, Profile] = {
    "core": Profile(lambda found: SCENARIOS[_scenario(found)].core),
    "chat": Profile(lambda found: _surface(found) not in _OTHER_THAN_CHAT),
    "responses": Profile(
        lambda found: _surface(found) not in ("chat", "completions", "messages"),
        {"responses": ("responses/stream-text",)},
    ),
    "agent": Profile(
        lambda found: _surface(found) not in ("completions", "messages"),
        {"responses": ("responses/stream-text",), "tools": ("chat/tool", "responses/tool")},
    ),
    "messages": Profile(lambda found: _surface(found) == "messages", {"messages": ("messages/text",)}),
    "full": Profile(lambda found: True),
}
"""`core`: requests that no server may refuse. `chat` and `responses`: one API and the common parts. `agent`: both APIs,
with tools. `messages`: Anthropic's API alone, which a server may have without the others. `full`: everything; a server
may lack optional features. Chat is core, so no profile lists it."""


class UnknownChoice(UnusableInput):
    """The suite does not have a check, surface or rule that was chosen."""


_select = partial(Describe, "selection")


class Selection(OptionGroup, frozen=True, kw_only=True):
    """Criteria for checks; a check must meet all of them."""

    ids: Annotated[
        Sequence[str],
        _select(
            "current or former ids of checks or rules, prefixes, or patterns such as '*/usage'",
            "ID",
            default="all",
            positional=True,
        ),
    ] = ()
    profile: Annotated[str, _select("set of checks", choices=tuple(PROFILES))] = "full"
    level: Annotated[str, _select("lowest level to include", choices=("must", "should", "may"))] = "may"
    surfaces: Annotated[
        Sequence[str],
        _select(
            "only this part of the API, such as chat; repeatable",
            "NAME",
            name="surface",
            also=("--only-surface",),
        ),
    ] = ()
    requirements: Annotated[
        str | None,
        _select(
            "only the checks of this published revision, so that a growing suite does not break a build",
            choices=tuple(revisions()),
        ),
    ] = None

    def checks(self) -> list[str]:
        """Return the ids of the selected checks, in the order of the suite.

        Raises:
            UnknownChoice: an id, prefix, pattern, rule or surface has no check.
        """
        for wanted in map(current, self.ids):
            if not any(_named(found, wanted) for found in CHECKS.values()):
                raise UnknownChoice(f"No check begins with {wanted}. `plumbline checks` shows them all.")
        surfaces = {_surface(found) for found in CHECKS.values()}
        for wanted in self.surfaces:
            if wanted not in surfaces:
                raise UnknownChoice(
                    f"--surface {wanted} is unknown: choose from {', '.join(sorted(surfaces))}"
                )
        known = CHECKS.keys() if self.requirements is None else set(published(self.requirements))
        return [name for name, found in CHECKS.items() if name in known and self._has(found)]

    def _has(self, found: Check) -> bool:
        return (
            (not self.ids or any(_named(found, current(wanted)) for wanted in self.ids))
            and PROFILES[self.profile].has(found)
            and _LEVELS.index(found.level) <= _LEVELS.index(self.level.upper())
            and (not self.surfaces or _surface(found) in self.surfaces)
        )


def named(wanted: str) -> list[Check]:
    """Return the checks that an id, prefix, pattern or rule matches, in the order of the suite."""
    wanted = current(wanted)
    return [found for found in CHECKS.values() if _named(found, wanted)]


def scenarios_that_show(profile: str) -> frozenset[str]:
    """Return the scenarios that show the capabilities of a profile."""
    return frozenset(name for shown in PROFILES[profile].requires.values() for name in shown)


def scenarios_of(checks: Sequence[str]) -> list[Scenario]:
    """Return the scenarios of these checks, in the order of the suite."""
    wanted = {_scenario(CHECKS[name]) for name in checks}
    return [found for found in SCENARIOS.values() if found.id in wanted]


def _named(found: Check, wanted: str) -> bool:
    return found.id.startswith(wanted) or fnmatchcase(found.id, wanted) or wanted.upper() in found.rules


def _scenario(found: Check) -> str:
    return found.id.rsplit("/", 1)[0]


def _surface(found: Check) -> str:
    return found.id.partition("/")[0]
