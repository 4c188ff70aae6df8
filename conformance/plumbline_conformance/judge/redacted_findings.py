"""What is told of an answer: verdicts are of the bytes as they came, words are of the bytes as they may be written.

A server may repeat a key wherever it likes, and a check repeats what it saw. So what shows a credential is looked at
twice; the second look, at the covered bytes, has the words, unless covering them changed what they mean. A key that
lies across two events of a stream is whole in no bytes, and appears where a check joins their texts: so words are
covered too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.recording.redaction import concealed, redacted, secrets_of
from plumbline_conformance.transcript.model import Exchange, Transcript

__all__ = ["judge_redacted", "redact_findings", "shows_secrets"]


def judge_redacted(seen: Transcript, secrets: Sequence[str] = ()) -> list[Finding]:
    """What `judge` says of a transcript, without these secrets and those of its headers."""
    found = judge(seen)
    covered = redacted(seen, secrets)
    again = found if covered == seen else judge(covered)
    known = {secret for exchange in seen.everything for secret in secrets_of(exchange, secrets)}
    return redact_findings(found, again, sorted(known | set(secrets)))


def shows_secrets(exchange: Exchange, covered: Exchange) -> bool:
    """Whether something of an exchange had to be covered that a check may repeat: not its own headers alone."""
    return msgspec.structs.replace(covered, request_headers=exchange.request_headers) != exchange


def redact_findings(
    found: Sequence[Finding], covered: Sequence[Finding], secrets: Sequence[str]
) -> list[Finding]:
    """The findings of the bytes that came, in the words of those of the covered bytes where the two agree.

    Whichever words they are, these secrets are covered in them.
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
    return msgspec.structs.replace(found, problems=problems, reason=reason)
