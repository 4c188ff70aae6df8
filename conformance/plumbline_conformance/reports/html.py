"""Write a report as one HTML file without scripts, fonts or requests, readable on a phone.

Text of a server is escaped, and the page's content security policy forbids loading and scripts, so that a hostile
answer has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby

import msgspec

from plumbline_conformance.recording.file import Options
from plumbline_conformance.reports.model import VERDICTS, Evidence, Report, Result, event_of
from plumbline_conformance.reports.standing import lacking
from plumbline_conformance.reports.text import by_rule, command_of, numbers, place_of
from plumbline_conformance.reports.timeline import Moment
from plumbline_conformance.suite.model import SEED

__all__ = ["exchange_html", "html", "page", "safe"]

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--bad:#d22;--ok:#2a7f3b;--warn:#b07400;--dim:#888}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem;overflow-wrap:anywhere}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
code,pre{font:13px/1.45 ui-monospace,monospace}
pre{white-space:pre-wrap;background:#8881;padding:.6rem;border-radius:.3rem;margin:.4rem 0}
.scroll{overflow-x:auto}table{border-collapse:collapse}td,th{border:1px solid var(--line);padding:.2rem .5rem}
th{text-align:left}td.n{text-align:right}
details{border:1px solid var(--line);border-radius:.4rem;margin:.5rem 0;padding:.4rem .7rem}
summary{cursor:pointer}
.v{font-weight:600}.pass{color:var(--ok)}.fail,.untestable,.error{color:var(--bad)}.warn,.flaky{color:var(--warn)}
.rejected,.inconclusive,.skipped{color:var(--dim)}
blockquote{margin:.5rem 0;padding-left:.8rem;border-left:3px solid var(--line)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem;margin:.5rem 0}dt{color:var(--dim)}dd{margin:0}
ol.t{list-style:none;margin:.5rem 0;padding:0}
ol.t li{display:grid;grid-template-columns:5.5rem 3rem 1fr;gap:.5rem;border-top:1px solid var(--line);padding:.2rem}
ol.t li>span{color:var(--dim);font:12px/1.8 ui-monospace,monospace;text-align:right}
ol.t pre{margin:0;padding:.1rem .3rem}
li.bad{outline:2px solid var(--bad);outline-offset:-1px;border-radius:.3rem}li.bad pre{background:#d222}
.mark{grid-column:1/-1;color:var(--bad);font-weight:600}
meter{width:100%;height:.35rem;grid-column:1/-1}
@media(max-width:36rem){ol.t li{grid-template-columns:4.6rem 1fr}ol.t li>pre{grid-column:1/-1}}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html(report: Report) -> str:
    """Return the page of a run."""
    run = report.run
    title = f"Plumbline: {run.model}"
    facts = {
        "server": run.server,
        "address": run.base_url,
        "model": run.model,
        "started": run.started,
        "asked with": _options(run.options),
        "took": "" if report.seconds is None else f"{report.seconds:g} s",
        "suite": ", ".join(f"{name} {value}" for name, value in run.suite.items()),
    }
    parts = [
        f"<h1>{safe(title)}</h1><dl>",
        *(f"<dt>{name}</dt><dd>{safe(value)}</dd>" for name, value in facts.items() if value),
        "</dl>",
        _counts(report),
        f"<p>Checks that pass, of those with a verdict: {numbers(report)}.</p>",
        *(
            f'<p class="v fail">{safe(name)} is in the baseline and no longer broken.</p>'
            for name in report.stale
        ),
        *(f'<p class="v fail">{safe(sentence)}</p>' for sentence in lacking(report)),
    ]
    for scenario, results in groupby(report.results, lambda result: result.scenario):
        parts += _scenario(report, scenario, list(results))
    return page(title, parts)


def _options(options: Options | None) -> str:
    """Return the options of the run that affect verdicts."""
    if options is None:
        return ""
    said = {name.replace("_", " "): value for name, value in msgspec.to_builtins(options).items()}
    limit, capabilities, profile = said.pop("limit"), said.pop("capabilities"), said.pop("profile")
    if said["seed"] == SEED:
        del said["seed"]
    numbers = [f"{name} {value:g}" for name, value in said.items() if value is not None]
    words = [f"said: {' '.join(capabilities)}"] if capabilities else []
    words += [] if profile == "full" else [f"profile {profile}"]
    return ", ".join([*numbers, *words, *([] if limit == "max_tokens" else [limit])])


def page(title: str, parts: Iterable[str]) -> str:
    """Return a document with parts that are already HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{safe(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def safe(text: str) -> str:
    """Return text as HTML, with markup escaped and control characters made visible."""
    return escape(
        "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
    )


def _counts(report: Report) -> str:
    surfaces = dict.fromkeys(result.surface for result in report.results)
    shown = [verdict for verdict in VERDICTS if report.counts[verdict]]
    rows = []
    for surface in surfaces:
        found = [result.verdict for result in report.results if result.surface == surface]
        cells = "".join(f'<td class="n {verdict}">{found.count(verdict) or ""}</td>' for verdict in shown)
        rows.append(f"<tr><th>{safe(surface)}</th>{cells}</tr>")
    heads = "".join(f"<th>{verdict}</th>" for verdict in shown)
    return f'<div class="scroll"><table><tr><th></th>{heads}</tr>{"".join(rows)}</table></div>'


def _scenario(report: Report, scenario: str, results: list[Result]) -> list[str]:
    green = [result for result in results if result.verdict == "pass"]
    parts = [f"<h2>{safe(scenario)} <small>{safe(report.scenarios.get(scenario, ''))}</small></h2>"]
    parts += [_result(report, result) for result in results if result.verdict != "pass"]
    if green:
        names = "".join(f"<li><code>{safe(r.check)}</code> {safe(r.title)}</li>" for r in green)
        parts.append(
            f'<details><summary><span class="v pass">{len(green)} pass</span></summary><ul>{names}</ul></details>'
        )
    # Claims of a client are about the exchanges of all scenarios.
    marked = [
        msgspec.structs.replace(result, problems=problems)
        for result in report.results
        if (problems := [p for p in result.problems if (p.scenario or result.scenario) == scenario])
    ]
    seen = report.evidence.get(scenario, [])
    parts += [exchange_html(number, exchange, len(seen), marked) for number, exchange in enumerate(seen)]
    return parts


def _result(report: Report, result: Result) -> str:
    parts = [
        f'<details{" open" if result.problems else ""}><summary><span class="v {safe(result.verdict)}">'
        f"{safe(result.verdict)}</span> <code>{safe(result.check)}</code> {safe(result.title)}</summary>"
    ]
    if result.reason:
        parts.append(f"<p>{safe(result.reason)}</p>")
    if result.traceback:
        parts.append(f"<pre>{safe(result.traceback)}</pre>")
    if result.expected is not None:
        parts.append(f"<p>Accepted by the baseline: {safe(result.expected)}</p>")
    for name, problems in by_rule(result) or [(name, []) for name in result.rules]:
        rule = report.rules[name]
        parts.append(
            f"<blockquote><b>{safe(rule.id)}</b> {safe(rule.level)}: {safe(rule.sentence)}"
            f" <small>{safe(rule.source)}</small></blockquote>"
        )
        for problem in problems[:10]:
            place = place_of(problem)
            where = f"<dt>where</dt><dd><code>{safe(place)}</code></dd>" if place else ""
            parts.append(
                f"<dl><dt>expected</dt><dd>{safe(problem.expected)}</dd>"
                f"<dt>actual</dt><dd>{safe(problem.actual)}</dd>{where}</dl>"
            )
        if len(problems) > 10:
            parts.append(f"<p>and {len(problems) - 10} more of this kind</p>")
    if result.problems:
        parts.append(f"<pre>{safe(command_of(report, result))}</pre>")
    return "".join(parts) + "</details>"


def exchange_html(number: int, seen: Evidence, count: int, results: list[Result]) -> str:
    """Return one exchange, with marks at the events that these results point at."""
    marks = _marks(number, seen, count, results)
    longest = max((moment.at for moment in seen.moments), default=0.0)
    said = seen.error or f"status {seen.status}"
    headers = "\n".join(f"{name}: {value}" for name, value in seen.headers)
    rows = "".join(_moment(moment, marks.get(moment.number, []), longest) for moment in seen.moments)
    return (
        f"<details{' open' if marks else ''}><summary>{safe(seen.method)} <code>{safe(seen.url)}</code>: {safe(said)}"
        f"</summary><pre>{safe(seen.command)}</pre>"
        f"<details><summary>request</summary><pre>{safe(seen.request)}</pre></details>"
        f"<details><summary>headers</summary><pre>{safe(headers)}</pre></details>"
        f'<ol class="t">{rows}</ol></details>'
    )


def _marks(number: int, seen: Evidence, count: int, results: list[Result]) -> dict[int | None, list[str]]:
    """Return the marked events with their checks; a stream problem without an exchange is about the last stream."""
    marks: dict[int | None, list[str]] = {}
    for result in results:
        for problem in result.problems:
            place = event_of(problem)
            if place is not None and number == (
                problem.exchange if problem.exchange is not None else count - 1
            ):
                by = f"{result.check}, {problem.rule}" if problem.rule else result.check
                said = f"{by}: expected {problem.expected}, actual {problem.actual}"
                marks.setdefault(place, []).append(said)
    numbers = {moment.number for moment in seen.moments}
    return {place: said for place, said in marks.items() if place in numbers}


def _moment(moment: Moment, marks: list[str], longest: float) -> str:
    if moment.kind == "gap":
        return f"<li><span></span><span></span><i>{moment.size} bytes are left out here</i></li>"
    name = str(moment.number) if moment.number is not None else moment.kind
    said = "".join(f'<div class="mark">▲ {safe(mark)}</div>' for mark in marks[:4])
    return (
        f"<li{' class=bad' if marks else ''}><span>{moment.at * 1000:.1f} ms</span><span>{safe(name)}</span>"
        f"<pre>{safe(moment.text)}</pre>"
        f'<meter min="0" max="{longest or 1:g}" value="{moment.at:g}"></meter>{said}</li>'
    )
