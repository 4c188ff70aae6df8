"""Define the facts that are reported of a template."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Difference", "Report"]


class Difference(NamedTuple):
    """One respect in which a template is not read as it writes."""

    probe: str
    """The name of a probe, or `detection`, `thinking` or `switch`."""
    found: str


class Report(NamedTuple):
    """The facts about one template."""

    name: str
    """The name of its file, with that of its folder."""
    tool: str
    reasoning: str
    has_tools: bool
    """The template shows tools to the model, or writes calls."""
    thinking: str
    """Where an answer starts for each setting of the thinking, and the variables for it."""
    dropped: tuple[str, ...]
    """Parts of a turn that the template never writes."""
    passed: int
    differences: tuple[Difference, ...]
