"""A badge: how many of the rules that could be judged are kept, by surface, in the colour of the worst MUST."""

from __future__ import annotations

import json
from xml.sax.saxutils import escape

from plumbline_conformance.reports.model import SCORED, Report

__all__ = ["badge_json", "badge_svg"]

_COLOURS = {"brightgreen": "#4c1", "yellow": "#dfb317", "red": "#e05d44", "lightgrey": "#9f9f9f"}


def badge_json(report: Report) -> str:
    """The endpoint format of shields.io."""
    message, colour = _said(report)
    value = {"schemaVersion": 1, "label": "plumbline", "message": message, "color": colour}
    return json.dumps(value, ensure_ascii=False) + "\n"


def badge_svg(report: Report) -> str:
    """The same, drawn."""
    message, colour = _said(report)
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


def _said(report: Report) -> tuple[str, str]:
    kept: dict[str, list[bool]] = {}
    broken: set[str] = set()
    for result in report.results:
        if result.verdict in SCORED:
            kept.setdefault(result.surface, []).append(result.verdict == "pass")
            if result.verdict != "pass":
                broken.add(result.level)
    if not kept:
        return "not judged", "lightgrey"
    message = " · ".join(f"{surface} {sum(held)}/{len(held)}" for surface, held in kept.items())
    return message, "red" if "MUST" in broken else "yellow" if broken else "brightgreen"


def _width(text: str) -> int:
    """Verdana at 11 pixels is about seven pixels a character."""
    return 12 + 7 * len(text)
