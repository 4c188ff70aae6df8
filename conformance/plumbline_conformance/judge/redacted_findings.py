"""Redact credentials in findings; judge the original bytes.

A server may repeat a key anywhere, and the text of a finding quotes the answer. A transcript that contains a credential
is therefore judged twice: verdicts come from the original bytes, texts from the redacted bytes unless redaction changed
the verdict. A key that is split over two events of a stream appears only when a check joins the texts, so the texts of
findings are redacted as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plumbline_conformance.judge.verdicts import Finding, failed, judge
from plumbline_conformance.recording.redaction import concealed, redacted, secrets_of
from plumbline_conformance.transcript.defects import traceback_of
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["judge_redacted", "redact_findings", "shows_secrets"]


def judge_redacted(seen: Transcript, secrets: Sequence[str] = ()) -> list[Finding]:
    """Judge a transcript, and redact these secrets and the secrets of its headers in the findings."""
    try:
        found = judge(seen)
        covered = redacted(seen, secrets)
        again = found if covered == seen else judge(covered)
        known = {secret for exchange in seen.everything for secret in secrets_of(exchange, secrets)}
        return redact_findings(found, again, sorted(known | set(secrets)))
    except Exception as error:  # A defect of the redaction: nothing of the answer may be shown then.
        return redact_findings(failed(seen.scenario, traceback_of(error)), (), secrets)


def shows_secrets(exchange: Exchange, covered: Exchange) -> bool:
    """Return whether redaction changed anything but the request headers, which no check quotes."""
    return msgspec.structs.replace(covered, request_headers=exchange.request_headers) != exchange


def redact_findings(
    found: Sequence[Finding], covered: Sequence[Finding], secrets: Sequence[str]
) -> list[Finding]:
    """Return the findings with texts that contain none of these secrets.

    Args:
        found: the findings of the original bytes.
        covered: the findings of the redacted bytes; their texts are used if the verdicts agree.
        secrets: redacted in either text.
    """
    again = {finding.check: finding for finding in covered}
    return [
        _concealed(other if (other := again.get(one.check)) and _like(one, other) else one, secrets)
        for one in found
    ]


def _like(one: Finding, other: Finding) -> bool:
    return (one.verdict, len(one.problems), one.broken) == (other.verdict, len(other.problems), other.broken)


def _concealed(found: Finding, secrets: Sequence[str]) -> Finding:
    problems = [
        msgspec.structs.replace(
            problem,
            expected=concealed(problem.expected, secrets),
            actual=concealed(problem.actual, secrets),
            pointer=concealed(problem.pointer, secrets),
        )
        for problem in found.problems
    ]
    reason = found.reason and concealed(found.reason, secrets)
    traceback = concealed(found.traceback, secrets)
    return msgspec.structs.replace(found, problems=problems, reason=reason, traceback=traceback)
