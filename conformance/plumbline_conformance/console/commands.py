"""Name the judge's commands, so that a help text does not need their modules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["COMMANDS"]

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "check": (
            "test a server",
            "plumbline check http://127.0.0.1:8000/v1 --html report.html",
        ),
        "list": (
            "list checks, or rules with their checks",
            "plumbline list chat/stream-text",
        ),
        "explain": (
            "explain a check, a scenario or a rule",
            "plumbline explain CHAT-08",
        ),
        "judge": (
            "run the checks on a recording, without a server",
            "plumbline judge run.jsonl --html report.html",
        ),
        "export": (
            "convert a recording for other tools",
            "plumbline export run.jsonl --har run.har",
        ),
        "matrix": (
            "compare several servers in one table",
            "plumbline matrix ours=a.json theirs=b.jsonl.gz --html matrix.html",
        ),
        "diff": (
            "send the same requests to two servers with the same weights",
            "plumbline diff http://127.0.0.1:8000/v1 http://127.0.0.1:8001/v1 --model-a my-model",
        ),
        "exact": (
            "test a server with a scripted checkpoint against its scripts",
            "plumbline exact .scripted --base-url http://127.0.0.1:8000/v1 --model scripted",
        ),
        "verify": (
            "compare a server with the results of another one that has the same model",
            "plumbline verify rows.jsonl --baseline results.jsonl --base-url http://127.0.0.1:8000/v1 --model my-model",
        ),
        "client": (
            "test a client: answer it in every legal way",
            "plumbline client python my_client.py",
        ),
        "fuzz": (
            "send generated requests, valid and invalid",
            "plumbline fuzz --base-url http://127.0.0.1:8000/v1 --model my-model --examples 2000",
        ),
        "vectors": (
            "score a parser, template engine, client or grammar by known answers",
            "plumbline vectors --run 'python my_runner.py' parsers/hermes",
        ),
        "bench": (
            "measure the speed of a server under load, or compare two in turn",
            "plumbline bench http://127.0.0.1:8000/v1 --concurrency 1 8 32 --html bench.html",
        ),
        "watch": (
            "check live traffic, as a transparent proxy",
            "plumbline watch --upstream http://127.0.0.1:8000 --listen :9000 --html live.html",
        ),
    }
)
"""The purpose and an example of each command."""
