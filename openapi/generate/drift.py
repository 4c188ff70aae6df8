"""List what the types of the official SDKs have and the contract has not.

    python -m generate.drift        print a table, and exit with 1 if drift.yaml does not explain a row

The documents are pinned, and the vendors go on: their SDKs have a new member, value or kind first. Members that only
the contract has, and bounds, which the SDKs do not have, are not drift.
"""

from __future__ import annotations

import sys
from typing import Any

from .bundle import OPENAPI, SCHEMA_REF, Json, document, load
from .upstream import Comparison, unexplained

DRIFT = OPENAPI / "drift.yaml"
_NEW = (": field -", ": value -", ": kind -")
_ROOT = "SdkType"


def sdk_types() -> dict[str, Any]:
    """Return the types of the SDKs that are installed, by the contract's schema of the same thing."""
    import anthropic.types as messages
    import openai.types as completions
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
    from openai.types import chat, responses
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParams
    from openai.types.completion_create_params import CompletionCreateParamsNonStreaming
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    return {
        "CreateChatCompletionRequest": ChatParams,
        "CreateChatCompletionResponse": chat.ChatCompletion,
        "CreateChatCompletionStreamResponse": chat.ChatCompletionChunk,
        "CreateCompletionRequest": CompletionCreateParamsNonStreaming,
        "CreateCompletionResponse": completions.Completion,
        "CreateResponse": ResponseCreateParamsNonStreaming,
        "Response": responses.Response,
        "ResponseStreamEvent": responses.ResponseStreamEvent,
        "CreateMessageRequest": MessageCreateParamsNonStreaming,
        "CreateMessageResponse": messages.Message,
        "MessageStreamEvent": messages.RawMessageStreamEvent,
    }


def drift() -> list[str]:
    """Return what the SDKs have and the contract has not: `Response: field -tool_usage`."""
    ours = document()
    found: set[str] = set()
    for name, kind in sdk_types().items():
        comparison = Comparison({"operations": {}, "schemas": _schemas(kind)}, ours)
        comparison.schemas(name, {"$ref": SCHEMA_REF + name}, {"$ref": SCHEMA_REF + _ROOT})
        found |= {line for line in comparison.found if any(part in line for part in _NEW)}
    return sorted(found)


def _schemas(kind: Any) -> Json:
    from pydantic import TypeAdapter

    schema = TypeAdapter(kind).json_schema(ref_template=SCHEMA_REF + "{model}")
    return {**schema.pop("$defs", {}), _ROOT: schema}


def versions() -> str:
    """Return the SDKs that are compared, with their versions."""
    import anthropic
    import openai

    return f"openai {openai.__version__}, anthropic {anthropic.__version__}"


def main() -> int:
    """Print every row with the reason why the contract has not what the SDK has, new rows first."""
    found, reviewed = drift(), load(DRIFT)
    new, stale = unexplained(found, reviewed)
    print(f"{versions()}: {len(found)} rows, {len(new)} of them new")
    for line in new:
        print(f"new: {line}")
    for text in stale:
        print(f"explains nothing: {text}")
    for entry in reviewed:
        known, _ = unexplained(found, [entry])
        for line in sorted(set(found) - set(known)):
            print(f"{line}\t{entry['reason']}")
    return 1 if new or stale else 0


if __name__ == "__main__":
    sys.exit(main())
