"""Answer questions of `plumbline vectors` with the parsers of another server.

    python conformance/reference_parsers/runner.py vllm|sglang
    python conformance/reference_parsers/environment.py --install conformance/reference_parsers/score.py

It reads one JSON object a line and writes one a line (`conformance/vectors/README.md`).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from interface import ParsedMessage, PeerParsers

__all__ = ["answer", "read"]


def main(name: str) -> int:
    """Answer until the input ends."""
    # What the peer prints on importing must not come between the answers.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    peer = _peer(name)
    for line in sys.stdin:
        question = json.loads(line)
        found = (
            {"name": peer.name, "version": peer.version} if "hello" in question else answer(peer, question)
        )
        replies.write(json.dumps(found) + "\n")
        replies.flush()
    return 0


def _peer(name: str) -> PeerParsers:
    if name == "sglang":
        from peer_sglang import Sglang

        return Sglang()
    from peer_vllm import Vllm

    return Vllm()


def answer(peer: PeerParsers, question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question; an exception of the parser is an error, a family that it lacks is skipped."""
    if question["suite"] != "parsers":
        return {"skipped": "only parsers are called"}
    try:
        return {"message": _message(read(peer, question))}
    except NotImplementedError as error:
        return {"skipped": str(error) or "this server reads the family elsewhere"}
    except Exception as error:
        if "tokenizer" in str(error):
            return {"skipped": "the parser needs the tokenizer of the family"}
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}


def read(peer: PeerParsers, question: dict[str, Any]) -> ParsedMessage:
    """Ask the parsers that a question names.

    Raises:
        NotImplementedError: the server has none, or they cannot read here.
    """
    dialect, tools = question["dialect"], question["tools"]
    pieces, markers, streamed = question["pieces"], dialect["markers"], question["streamed"]
    text = "".join(pieces)
    thinks = _name(dialect.get("reasoning"), peer.reasoning_parsers())
    calls = _name(dialect.get("tool"), peer.names())
    switch = "on" if question["thinking"] else "off"
    variables = dialect.get("reasoning", {}).get("variables", {}).get(switch, {})
    if "tool" in dialect and calls is None:
        raise NotImplementedError("no tool parser has one of its names")
    if "reasoning" in dialect and thinks is None:
        raise NotImplementedError("no reasoning parser has one of its names")
    if calls is None or (not tools and thinks is not None):
        assert thinks is not None
        return peer.read_reasoning(
            thinks, text, markers, question["opened"], variables, streamed=streamed, pieces=pieces
        )
    if thinks is None or not question["thinking"]:
        return peer.read(calls, text, tools, markers, streamed=streamed, pieces=pieces)
    return peer.read_with_reasoning(
        calls, thinks, text, tools, markers, question["opened"], variables, streamed=streamed, pieces=pieces
    )


def _name(dialect: dict[str, Any] | None, known: Sequence[str]) -> str | None:
    names = [] if dialect is None else [dialect["name"], *dialect["aliases"]]
    return next((name for name in names if name in known), None)


def _message(message: ParsedMessage) -> dict[str, Any]:
    """Return the message as an answer; the interface has thinking as a call named `thinks`."""
    reasoning = next((text for name, text in message.calls if name == "thinks"), "")
    calls = [
        {"name": name, "arguments": arguments.removeprefix("no JSON: ")}
        for name, arguments in message.calls
        if name != "thinks"
    ]
    return {"reasoning": reasoning, "content": message.content, "calls": calls}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
