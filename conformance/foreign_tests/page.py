"""Write the results into docs/reference/compatibility-vllm.md, between two marks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from foreign_tests.expected import Summary
from foreign_tests.suites import HERE, SUITES

__all__ = ["PAGE", "RESULTS", "page_with", "write_page"]

RESULTS = HERE / "results.json"
"""The numbers of the last whole run of each suite."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility-vllm.md"
_BEGIN = "<!-- The results of `nox -s foreign -- --write` begin here. -->\n"
_END = "<!-- They end here. -->\n"


def write_page(found: Mapping[str, Summary]) -> None:
    """Write the numbers, and the part of the page that shows them."""
    text = msgspec.json.format(msgspec.json.encode(dict(found)), indent=1)
    RESULTS.write_bytes(text + b"\n")
    PAGE.write_text(page_with(PAGE.read_text("utf-8"), found), "utf-8")


def page_with(page: str, found: Mapping[str, Summary]) -> str:
    """Return the page with these results between its marks."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{_table(found)}\n{_END}{after}"


def _table(found: Mapping[str, Summary]) -> str:
    lines = [
        "| tests | all | pass | differ by design | do not apply | call no server |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        suite = SUITES[name]
        numbers = (sum(one.different.values()), sum(one.inapplicable.values()), one.skipped)
        cells = (f"{suite.title} (`{suite.archive}`)", one.total, one.passed, *numbers)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for heading, listed in (("differ by design", "different"), ("do not apply", "inapplicable")):
        lines += ["", f"| which {heading} | tests | why |", "|---|---|---|"]
        lines += [
            f"| {SUITES[name].title} | {count} | {reason} |"
            for name, one in found.items()
            for reason, count in sorted(getattr(one, listed).items())
        ]
    return "\n".join([*lines, ""])
