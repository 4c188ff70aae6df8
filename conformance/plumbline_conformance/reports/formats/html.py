"""Write a report as one HTML file without scripts, fonts or requests, readable on a phone.

Text of a server is escaped, and the page's content security policy forbids loading and scripts, so that a hostile
answer has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from itertools import groupby

import msgspec

from plumbline_conformance.recording.file import Options
from plumbline_conformance.reports.causes import distinct, groups
from plumbline_conformance.reports.conformance_classes import classes_line
from plumbline_conformance.reports.formats.text import by_rule, command_of, name_of, place_of, scores, times
from plumbline_conformance.reports.repairs import repair_lines
from plumbline_conformance.reports.report import VERDICTS, Evidence, Report, Result, event_of
from plumbline_conformance.reports.skips import skip_lines
from plumbline_conformance.reports.standing import headline, lacking, refused, status_of
from plumbline_conformance.reports.timeline import Moment
from plumbline_conformance.suite.scenario import SEED

__all__ = ["exchange_html", "html", "marks_of", "page", "safe", "safe_text"]

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--bad:light-dark(#c01818,#ff7b72);--ok:light-dark(#1f6b2f,#6cc57c);
--warn:light-dark(#805300,#e0a030);--dim:light-dark(#666,#aaa)}
*{box-sizing:border-box}
body{background:Canvas;color:CanvasText}
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
    title = f"Plumbline: {name_of(report)}"
    facts = {
        "server": run.server,
        "address": run.base_url,
        "model": run.model,
        "started": run.started,
        "asked with": _options(run.options),
        "took": "" if report.seconds is None else f"{report.seconds:g} s",
        "suite": ", ".join(f"{name} {value}" for name, value in run.suite.items()),
    }
    scenarios = [
        (name, list(found)) for name, found in groupby(report.results, lambda result: result.scenario)
    ]
    harm = {group.result.check: place for place, group in enumerate(groups(report))}
    # Stable: failures in the order of harm, then the order of the run.
    scenarios.sort(key=lambda row: (_urgency(row[1]), min(harm.get(r.check, len(harm)) for r in row[1])))
    status = "pass" if status_of(report, strict=False) == 0 else "fail"
    writer = _Writer(report)
    sections = [part for scenario, results in scenarios for part in writer.scenario(scenario, results)]
    parts = [
        f"<h1>{safe(title)}</h1>",
        f'<p class="v {status}">{safe(headline(report))}</p>',
        *(
            f'<p class="v warn">{safe(name)} is in the baseline and no longer broken as listed.</p>'
            for name in report.stale
        ),
        *(f'<p class="v fail">{safe(sentence)}</p>' for sentence in (*lacking(report), *refused(report))),
        *(f"<p>{safe(line)}</p>" for line in repair_lines(report)),
        "<dl>",
        *(f"<dt>{name}</dt><dd>{safe(value)}</dd>" for name, value in facts.items() if value),
        "</dl>",
        _counts(report),
        f"<p>By class: {safe(classes_line(report))}.</p>",
        f"<p>Checks that pass, of those with a verdict: {scores(report)}.</p>",
        _skips(report),
        _contents(report, scenarios),
        *sections,
    ]
    return page(title, parts)


_BROKEN = ("error", "fail", "untestable", "flaky", "warn")


def _urgency(results: list[Result]) -> int:
    """Return 0 for a scenario with failures, 1 for one with a check without a verdict, 2 if all checks pass."""
    verdicts = {result.verdict for result in results}
    return 0 if verdicts & set(_BROKEN) else 2 if verdicts == {"pass"} else 1


def _anchor(*parts: str) -> str:
    """Return a name that is valid in an address."""
    return "-".join(re.sub(r"[^A-Za-z0-9]+", "-", part) for part in parts)


def _contents(report: Report, scenarios: list[tuple[str, list[Result]]]) -> str:
    """Return the list of the scenarios with failures, and a folded list of the others."""
    rows: dict[bool, list[str]] = {True: [], False: []}
    for name, results in scenarios:
        broken = sum(result.verdict in _BROKEN for result in results)
        count = f"{broken} of {len(results)}" if broken else str(len(results))
        link = f'<a href="#{_anchor("s", name)}">{safe(name)}</a>'
        link = f"<li>{link} {safe(report.scenarios.get(name, ''))} ({count})</li>"
        rows[bool(broken)].append(link)
    failing = f"<h2>Scenarios with failures</h2><ul>{''.join(rows[True])}</ul>" if rows[True] else ""
    others = f"<details><summary>{len(rows[False])} other scenarios</summary><ul>{''.join(rows[False])}</ul></details>"
    return f"<nav>{failing}{others if rows[False] else ''}</nav>"


def _skips(report: Report) -> str:
    """Return why scenarios were skipped: mostly what the server does not offer."""
    lines = "".join(f"<li>{safe(line)}</li>" for line in skip_lines(report))
    return f"<h2>Skipped</h2><ul>{lines}</ul>" if lines else ""


def _options(options: Options | None) -> str:
    """Return the options of the run that affect verdicts."""
    if options is None:
        return ""
    shown = {name.replace("_", " "): value for name, value in msgspec.to_builtins(options).items()}
    limit, capabilities, profile = shown.pop("limit"), shown.pop("capabilities"), shown.pop("profile")
    if shown["seed"] == SEED:
        del shown["seed"]
    numbers = [f"{name} {value:g}" for name, value in shown.items() if value is not None]
    words = [f"said: {' '.join(capabilities)}"] if capabilities else []
    words += [] if profile == "full" else [f"profile {profile}"]
    return ", ".join([*numbers, *words, *([] if limit == "max_tokens" else [limit])])


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """Return a document with parts that are already HTML, and with further style rules."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{safe(title)}</title><style>{_STYLE}{style}</style></head><body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def safe(text: str) -> str:
    """Return text as HTML for any place, with markup escaped and control characters made visible."""
    return escape(_visible(text))


def safe_text(text: str) -> str:
    """Return text as HTML between tags, where quotes need no escape: JSON stays readable and small."""
    return escape(_visible(text), quote=False)


def _visible(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def _counts(report: Report) -> str:
    """Return the table of verdicts by part of the API; each count leads to its first check."""
    surfaces = dict.fromkeys(result.surface for result in report.results)
    shown = [verdict for verdict in VERDICTS if report.counts[verdict]]
    rows = []
    for surface in surfaces:
        found = [result.verdict for result in report.results if result.surface == surface]
        cells = ""
        for verdict in shown:
            count = found.count(verdict)
            link = f'<a href="#{_anchor(verdict, surface)}">{count}</a>' if count else ""
            cells += f'<td class="n {verdict}">{link}</td>'
        rows.append(f"<tr><th>{safe(surface)}</th>{cells}</tr>")
    heads = "".join(f"<th>{verdict}</th>" for verdict in shown)
    return f'<div class="scroll"><table><tr><th></th>{heads}</tr>{"".join(rows)}</table></div>'


class _Writer:
    """Write scenarios; it remembers which anchors and which sentences of rules the page has already."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._anchors: set[str] = set()
        self._rules: set[str] = set()

    def scenario(self, scenario: str, results: list[Result]) -> list[str]:
        """Return a scenario: its failures, the checks that pass, its exchanges. An all green one is folded."""
        report = self._report
        green = [result for result in results if result.verdict == "pass"]
        title = f"{safe(scenario)} <small>{safe(report.scenarios.get(scenario, ''))}</small>"
        parts = [self._result(result) for result in results if result.verdict != "pass"]
        if green:
            names = "".join(f"<li><code>{safe(r.check)}</code> {safe(r.title)}</li>" for r in green)
            parts.append(
                f'<details{self._first("pass", green[0].surface)}><summary><span class="v pass">{len(green)} pass'
                f"</span></summary><ul>{names}</ul></details>"
            )
        # Claims of a client are about the exchanges of all scenarios.
        marked = [
            msgspec.structs.replace(result, problems=problems)
            for result in report.results
            if (problems := [p for p in result.problems if (p.scenario or result.scenario) == scenario])
        ]
        seen = report.evidence.get(scenario, [])
        parts += [exchange_html(exchange, marked, named=len(seen) > 1) for exchange in seen]
        place = _anchor("s", scenario)
        if len(green) == len(results):
            return [
                f'<details id="{place}"><summary><b>{title}</b> {len(green)} pass</summary>',
                *parts,
                "</details>",
            ]
        return [f'<h2 id="{place}">{title}</h2>', *parts]

    def _first(self, verdict: str, surface: str) -> str:
        """Return an id for the first check with this verdict of a part of the API."""
        name = _anchor(verdict, surface)
        if name in self._anchors:
            return ""
        self._anchors.add(name)
        return f' id="{name}"'

    def _result(self, result: Result) -> str:
        opened = " open" if result.problems and result.cause is None else ""
        parts = [
            f"<details{opened}{self._first(result.verdict, result.surface)}>"
            f'<summary id="{_anchor("c", result.check)}"><span class="v {safe(result.verdict)}">'
            f"{safe(result.verdict)}</span> <code>{safe(result.check)}</code> {safe(result.title)}</summary>"
        ]
        if result.cause is not None:
            link = f'<a href="#{_anchor("c", result.cause)}"><code>{safe(result.cause)}</code></a>'
            parts.append(f"<p>It has the same cause as {link}.</p>")
        if result.reason:
            parts.append(f"<p>{safe(result.reason)}</p>")
        if result.traceback:
            parts.append(f"<pre>{safe(result.traceback)}</pre>")
        if result.expected is not None:
            parts.append(f"<p>Accepted by the baseline: {safe(result.expected)}</p>")
        for name, problems in by_rule(result) or [(name, []) for name in result.rules]:
            parts.append(self._rule(name, broken=bool(problems)))
            different = distinct(problems)
            for problem, count in different[:10]:
                place = place_of(self._report, result, problem) + times(count)
                where = f"<dt>where</dt><dd><code>{safe(place)}</code></dd>" if place else ""
                parts.append(
                    f"<dl><dt>expected</dt><dd>{safe(problem.expected)}</dd>"
                    f"<dt>actual</dt><dd>{safe(problem.actual)}</dd>{where}</dl>"
                )
            if len(different) > 10:
                parts.append(f"<p>and {len(different) - 10} other problems</p>")
        if result.problems:
            parts.append(f"<pre>{safe(command_of(self._report, result))}</pre>")
        return "".join(parts) + "</details>"

    def _rule(self, name: str, *, broken: bool) -> str:
        """Return the sentence of a rule at its first violation, and its id with a link at later ones."""
        rule = self._report.rules[name]
        head = f"<b>{safe(rule.id)}</b> {safe(rule.level)}"
        place = _anchor("r", rule.id)
        if name in self._rules:
            return f'<blockquote><a href="#{place}">{head}</a></blockquote>'
        if not broken:
            return f"<blockquote>{head}</blockquote>"
        self._rules.add(name)
        source = f"<small>Source: {safe(rule.source)}</small>" if rule.source else ""
        head = f'<a href="{safe(rule.url)}">{head}</a>' if rule.url else head
        return f'<blockquote id="{place}">{head}: {safe(rule.sentence)} {source}</blockquote>'


def exchange_html(seen: Evidence, results: list[Result], *, named: bool) -> str:
    """Return one exchange, with marks at the events that these results point at, and with its name if wanted.

    The request is folded below the command; it is left out if the evidence does not contain it.
    """
    marks = marks_of(seen, results)
    name = f"<b>{safe(seen.name)}</b> " if named and seen.name else ""
    longest = max((moment.at for moment in seen.moments), default=0.0)
    outcome = seen.error or f"status {seen.status}"
    headers = "\n".join(f"{name}: {value}" for name, value in seen.headers)
    rows = "".join(_moment(moment, marks.get(moment.number, []), longest) for moment in seen.moments)
    folded = {"request": seen.request, "headers": headers}
    return (
        f"<details{' open' if marks else ''}><summary>{name}{safe(seen.method)} <code>{safe(seen.url)}</code>: "
        f"{safe(outcome)}</summary><pre>{safe_text(seen.command)}</pre>"
        + "".join(
            f"<details><summary>{name}</summary><pre>{safe_text(text)}</pre></details>"
            for name, text in folded.items()
            if text
        )
        + f'<ol class="t">{rows}</ol></details>'
    )


def marks_of(seen: Evidence, results: list[Result]) -> dict[int | None, list[str]]:
    """Return the marked events of an exchange with their checks."""
    marks: dict[int | None, list[str]] = {}
    for result in results:
        for problem in result.problems:
            place = event_of(problem)
            if place is not None and (problem.exchange or "") == seen.name:
                by = f"{result.check}, {problem.rule}" if problem.rule else result.check
                text = f"{by}: expected {problem.expected}, actual {problem.actual}"
                marks.setdefault(place, []).append(text)
    numbers = {moment.number for moment in seen.moments}
    return {place: texts for place, texts in marks.items() if place in numbers}


def _moment(moment: Moment, marks: list[str], longest: float) -> str:
    if moment.kind == "gap":
        events = f"{safe(moment.text)}, " if moment.text else ""
        return f"<li><span></span><span></span><i>{events}{moment.size} bytes are left out here</i></li>"
    name = str(moment.number) if moment.number is not None else moment.kind
    lines = "".join(f'<div class="mark">▲ {safe_text(mark)}</div>' for mark in marks[:4])
    return (
        f"<li{' class=bad' if marks else ''}><span>{moment.at * 1000:.1f} ms</span><span>{safe(name)}</span>"
        f"<pre>{safe_text(moment.text)}</pre>"
        f'<meter min="0" max="{longest or 1:g}" value="{moment.at:g}"></meter>{lines}</li>'
    )
