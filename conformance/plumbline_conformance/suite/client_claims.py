"""Define the claims of `--sdk`. They are not checks: a check is a pure function of a transcript, a client is not."""

from __future__ import annotations

from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS, CheckSummary

__all__ = ["CLAIMS", "CLIENTS", "claim_of", "title_of"]

CLIENTS = ("openai", "anthropic")
"""The clients that `--sdk` knows."""
_READS = "Let the client read"
_SAME = "Let the client's final object match the events of"
_ERRORS = ("Let the client raise the error of the status", ("SDK-01",))
_TITLES_AND_RULES: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "openai": {
        "chat-whole": (f"{_READS} chat completions", ("SDK-01",)),
        "chat-stream": (f"{_READS} streamed chat completions", ("SDK-01", "SDK-02")),
        "chat-stream-helper": (f"{_SAME} a chat completion", ("SDK-01", "SDK-02")),
        "completions-whole": (f"{_READS} completions", ("SDK-01",)),
        "completions-stream": (f"{_READS} streamed completions", ("SDK-01", "SDK-02")),
        "responses-whole": (f"{_READS} responses", ("SDK-01",)),
        "responses-stream": (f"{_READS} streamed responses", ("SDK-01", "SDK-02")),
        "responses-stream-helper": (f"{_SAME} a response", ("SDK-01", "SDK-02")),
        "models-whole": (f"{_READS} models", ("SDK-01",)),
        "errors": _ERRORS,
    },
    "anthropic": {
        "messages-whole": (f"{_READS} messages", ("SDK-01",)),
        "messages-stream": (f"{_READS} streamed messages", ("SDK-01", "SDK-02")),
        "messages-stream-helper": (f"{_SAME} a message", ("SDK-01", "SDK-02")),
        "count-whole": (f"{_READS} counts of tokens", ("SDK-01",)),
        "errors": _ERRORS,
    },
}
CLAIMS: dict[str, CheckSummary] = {
    f"sdk/{client}/{slug}": CheckSummary(id=f"sdk/{client}/{slug}", title=title, level="SHOULD", rules=rules)
    for client in CLIENTS
    for slug, (title, rules) in _TITLES_AND_RULES[client].items()
}
"""By id. Claims with `-helper` use the client's own fold of a stream (`client.chat.completions.stream`)."""
_TITLES = {f"sdk/{client}": f"Recorded answers, read by the official client {client}" for client in CLIENTS}


def claim_of(name: str) -> CheckSummary | None:
    """Return the check or claim with this id; None if the id is unknown."""
    return CHECKS.get(name) or CLAIMS.get(name)


def title_of(scenario: str) -> str:
    """Return the title of a scenario, or of the claims of a client."""
    return _TITLES.get(scenario) or SCENARIOS[scenario].title
