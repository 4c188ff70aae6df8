"""Draw the points of a benchmark as one HTML page without scripts or requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from plumbline_conformance.bench.summary import Figures, Point

__all__ = ["page"]

_STYLE = """
:root{color-scheme:light dark;--a:#1f6feb;--b:#d2691e;--line:#8884;--dim:#777}
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem}figure{margin:1.5rem 0}figcaption{font-weight:600}
.s{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{border-bottom:1px solid var(--line);padding:.25rem .7rem;text-align:right}td:first-child,th:first-child,
td:nth-child(2),th:nth-child(2){text-align:left}
svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:currentColor}
.g{stroke:var(--line)}.l0{stroke:var(--a)}.l1{stroke:var(--b)}path,polyline{fill:none;stroke-width:2}
.d0{fill:var(--a)}.d1{fill:var(--b)}.w{stroke-dasharray:4 4;stroke-width:1.5}
"""
_WIDTH, _HEIGHT, _LEFT, _BELOW, _ABOVE = 720, 260, 60, 36, 12

Value = Callable[[Point], float | None]


def page(points: Sequence[Point], api: str) -> str:
    """Return the page: throughput and latencies against the load, and the figures as a table."""
    servers = list(dict.fromkeys(point.server for point in points))
    legend = " ".join(
        f'<span class="k"><svg viewBox="0 0 10 10" style="width:.7rem"><circle class="d{number}" cx="5" cy="5" '
        f'r="5"/></svg> {escape(name)}</span>'
        for number, name in enumerate(servers)
    )
    charts = [
        _chart("Output tokens per second", points, servers, [lambda point: point.output_tokens_per_second]),
        _chart(
            "Time to the first token, ms: median, and 99th percentile (dashed)",
            points,
            servers,
            [_of("time_to_first_token", "p50"), _of("time_to_first_token", "p99")],
        ),
        _chart(
            "Time per further token, ms: median, and 99th percentile (dashed)",
            points,
            servers,
            [_of("time_per_output_token", "p50"), _of("time_per_output_token", "p99")],
        ),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><meta name="viewport" content="width=device-width"><title>Benchmark</title>'
        f"<style>{_STYLE}</style><h1>Benchmark of {escape(api)}</h1><p>{legend}</p>{''.join(charts)}"
        f'<div class="s">{_table(points)}</div></html>\n'
    )


def _of(name: str, part: str) -> Value:
    def value(point: Point) -> float | None:
        figures: Figures | None = getattr(point, name)
        return None if figures is None else float(getattr(figures, part))

    return value


def _chart(title: str, points: Sequence[Point], servers: Sequence[str], values: Sequence[Value]) -> str:
    """Draw values against loads, which have equal distances; the second value is dashed."""
    loads = list(dict.fromkeys(point.load for point in points))
    found = [value(point) for value in values for point in points]
    top = _nice(max((each for each in found if each is not None), default=1.0) or 1.0)
    step = (_WIDTH - _LEFT - 20) / max(1, len(loads) - 1)

    def x(load: str) -> float:
        return _LEFT + 10 + step * loads.index(load)

    def y(value: float) -> float:
        return _ABOVE + (_HEIGHT - _ABOVE - _BELOW) * (1 - value / top)

    parts = []
    for part in range(5):
        level = top * part / 4
        parts.append(f'<path class="g" d="M{_LEFT} {y(level):.1f}H{_WIDTH}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(level) + 4:.1f}" text-anchor="end">{level:,.4g}</text>')
    parts += [
        f'<text x="{x(load):.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{escape(load)}</text>'
        for load in loads
    ]
    for number, server in enumerate(servers):
        for kind, value in enumerate(values):
            places = [
                (x(point.load), y(known))
                for point in points
                if point.server == server and (known := value(point)) is not None
            ]
            line = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
            parts.append(f'<polyline class="l{number}{" w" if kind else ""}" points="{line}"/>')
            parts += [f'<circle class="d{number}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in places]
    label = escape(title, quote=True)
    return (
        f'<figure><figcaption>{label}</figcaption><svg viewBox="0 0 {_WIDTH + 20} {_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></figure>'
    )


def _nice(value: float) -> float:
    """Round up to one of 1, 2, 4, 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 8, 10) if factor * power >= value)


def _table(points: Sequence[Point]) -> str:
    head = (
        "server",
        "load",
        "requests",
        "failed",
        "requests/s",
        "tokens/s",
        "first token p50",
        "p90",
        "p99",
        "each token p50",
        "p90",
        "p99",
        "gap p99",
        "answer p50",
        "p99",
        "goodput",
    )
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(point))}</tr>" for point in points
    )
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{rows}</table>"


def _cells(point: Point) -> list[str]:
    def shown(figures: Figures | None, *parts: str) -> list[str]:
        return ["–" if figures is None else f"{getattr(figures, part):.1f}" for part in parts]

    return [
        point.server,
        point.load,
        str(point.requests),
        str(point.failed),
        f"{point.requests_per_second:.2f}",
        f"{point.output_tokens_per_second:,.0f}",
        *shown(point.time_to_first_token, "p50", "p90", "p99"),
        *shown(point.time_per_output_token, "p50", "p90", "p99"),
        *shown(point.gap, "p99"),
        *shown(point.answer, "p50", "p99"),
        "–" if point.goodput is None else f"{point.goodput:.0%}",
    ]
