"""Write a badge: how many protocol checks pass, of those with a verdict, by part of the API.

Its colour shows the worst broken MUST; it is green only if the exit status is 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from xml.sax.saxutils import escape

from plumbline_conformance.reports.report import SCORED, Report
from plumbline_conformance.reports.standing import blamed, core_of, status_of, unjudged, whole

__all__ = ["badge_json", "badge_svg"]

_COLOURS = {"brightgreen": "#4c1", "yellow": "#dfb317", "red": "#e05d44", "lightgrey": "#9f9f9f"}


def badge_json(report: Report, *, strict: bool = False) -> str:
    """Return the badge in the endpoint format of shields.io."""
    message, colour = _message(report, strict)
    value = {"schemaVersion": 1, "label": "plumbline", "message": message, "color": colour}
    return json.dumps(value, ensure_ascii=False) + "\n"


def badge_svg(report: Report, *, strict: bool = False) -> str:
    """Return the badge as SVG."""
    message, colour = _message(report, strict)
    label = "plumbline"
    left, right = _width(label), _width(message)
    title = escape(f"{label}: {message}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{title}"><title>{title}</title>'
        f'<clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{_COLOURS[colour]}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,Geneva,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14">{escape(label)}</text>'
        f'<text x="{left + right / 2}" y="14">{escape(message)}</text></g></svg>\n'
    )


def _message(report: Report, strict: bool) -> tuple[str, str]:
    kept: dict[str, list[bool]] = {}
    broken: set[str] = set()
    for result in report.results:
        if result.verdict in SCORED:
            if not result.sampled:
                kept.setdefault(result.surface, []).append(result.verdict == "pass")
            if result.verdict != "pass":
                broken.add(result.level)
    if not kept:
        message = "not judged"
    else:
        message = " · ".join(f"{surface} {sum(held)}/{len(held)}" for surface, held in kept.items())
    parts = [message, *_beside(report, strict)]
    status = status_of(report, strict=strict)
    # Violations of a baseline count as violations; checks without a verdict do not affect the colour.
    if "MUST" in broken or status == 1:
        return " · ".join(parts), "red"
    if status or not kept:
        return " · ".join(parts), "lightgrey"
    return message, "yellow" if broken else "brightgreen"


def _beside(report: Report, strict: bool) -> Iterator[str]:
    """Return a note for an exit status that the numbers do not explain."""
    sampled = {result.check: result.sampled and result.verdict in SCORED for result in report.results}
    core = core_of(report)
    refused = dict.fromkeys(
        result.scenario
        for result in report.results
        if result.verdict == "rejected" and result.scenario in core
    )
    yield from (f"{name} refused" for name in refused)
    if report.counts["error"]:
        yield "the suite failed"
    if report.stale and strict:
        yield "stale baseline"
    if any(by != 3 and sampled.get(check) for check, by in blamed(report, strict=strict).items()):
        yield "behaviour broken"
    yield from (f"no {name}" for name in report.lacking)
    if any(result.verdict in SCORED for result in report.results):
        yield from (f"{name} not judged" for name in unjudged(report))
        if not whole(report):
            yield "interrupted"


def _width(text: str) -> int:
    """Return the width of a text: Verdana at 11 pixels is about seven pixels per character."""
    return 12 + 7 * len(text)
