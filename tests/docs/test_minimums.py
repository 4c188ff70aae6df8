"""minimums.txt pins the oldest release that pyproject.toml allows, so that `nox -s minimums` can install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "minimums.txt").read_text("utf-8"), re.M))


def lower_bounds() -> dict[str, str]:
    """Return the lower bound of each requirement of the base and `serve`, `mcp` and `images`."""
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["serve"], *extras["mcp"], *extras["images"]]
    return {m[1]: m[2] for each in wanted if (m := re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", each))}


def numbers(version: str) -> tuple[int, ...]:
    """Return a version without zeros at its end, so that 1.13 is 1.13.0."""
    return tuple(int(part) for part in re.sub(r"(\.0)+$", "", version).split("."))


def test_every_pin_is_the_lower_bound() -> None:
    bounds = lower_bounds()
    assert {name: pin for name, pin in PINS.items() if numbers(bounds[name]) != numbers(pin)} == {}


def test_what_uses_internals_has_an_upper_bound() -> None:
    """`server/start/connections` subclasses uvicorn's protocols."""
    serve = PROJECT["optional-dependencies"]["serve"]
    assert all(
        "<" in next(each for each in serve if each.startswith(name))
        for name in ("uvicorn", "litestar", "llguidance")
    )
