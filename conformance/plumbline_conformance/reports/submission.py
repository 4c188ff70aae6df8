"""Say what is missing in a recording that a server author submits (CONTRIBUTING-servers.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import Recording
from plumbline_conformance.reports.standing import UNASKED
from plumbline_conformance.suite.scenario import SCENARIOS
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["problems"]

_MOST_BYTES = 1024 * 1024
_VERSIONED = re.compile(r"\S.* v?\d.*")
_PRIVATE = {
    "a key": re.compile(rb"\b(?:sk-[\w-]{20,}|hf_\w{20,}|gh[pousr]_\w{20,}|AKIA[0-9A-Z]{16}|AIza[\w-]{35})"),
    "a path of a person": re.compile(rb"(?:/home/|/Users/|/root/|[A-Z]:\\{1,2}Users\\{1,2})[\w.-]+"),
    "an e-mail address": re.compile(rb"\b[\w.+-]+@(?!example\.)[\w-]+\.[a-z]{2,}\b"),
}


def problems(path: Path, found: Recording) -> Iterator[str]:
    """Yield what has to change before a recording can be a row of the table, in sentences.

    Args:
        path: the file.
        found: its content, which has been read without an error: its digest is right.
    """
    header, options = found.header, found.header.options
    if header.by != "check" or options is None:
        yield "It is a recording of live traffic: record with `plumbline check --record`."
        return
    if header.chosen or options.profile != "full":
        yield "It has a part of the checks: record without ids, --profile, --level and --surface."
    if not _VERSIONED.fullmatch(header.server):
        yield "It does not name the server: record with --server 'NAME VERSION'."
    if (size := path.stat().st_size) > _MOST_BYTES:
        yield f"It has {size} bytes, of {_MOST_BYTES} at most: record with a model whose answers are short."
    missing = sorted(set(SCENARIOS) - {seen.scenario for seen in found.transcripts})
    if missing:
        yield (
            f"It lacks {len(missing)} scenarios of this suite, the first of them {missing[0]}: record with this "
            "release, to the end."
        )
    if any(seen.skipped == UNASKED for seen in found.transcripts):
        yield "The run was interrupted: record to the end."
    for seen in found.transcripts:
        for exchange in seen.everything:
            for kind, where in _private(exchange):
                yield (
                    f"{seen.scenario} has {kind} in its {where}: record with --conceal TEXT, with a key of its own, "
                    "or on another account."
                )
        if wrong := [one.check for one in judge(seen) if one.verdict == "error"]:
            yield f"The judge itself fails at {wrong[0]}: please report that."


def _private(exchange: Exchange) -> Iterator[tuple[str, str]]:
    headers = [*exchange.request_headers.items(), *exchange.headers]
    parts = {
        "address": exchange.url.encode("utf-8", "surrogatepass"),
        "headers": "\n".join(f"{name}: {value}" for name, value in headers).encode("utf-8", "surrogatepass"),
        "request": exchange.request_body,
        "answer": exchange.body,
    }
    for where, content in parts.items():
        for kind, pattern in _PRIVATE.items():
            if pattern.search(content):
                yield kind, where
