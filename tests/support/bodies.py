"""One valid body per operation that takes one, and what it decodes to."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.messages import CreateMessageRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract._generated.utilities import DetokenizeRequest, TokenizeRequest

__all__ = ["BODIES", "ROOTS", "each_api", "each_body"]

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "test-model", "messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"model": "test-model", "prompt": "hello", "max_tokens": 100},
    "/v1/responses": {"model": "test-model", "input": "hello"},
    "/v1/messages": {
        "model": "test-model",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "hello"}],
    },
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2]},
}
ROOTS: dict[str, Any] = {
    "/v1/chat/completions": CreateChatCompletionRequest,
    "/v1/completions": CreateCompletionRequest,
    "/v1/responses": CreateResponse,
    "/v1/messages": CreateMessageRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
each_body = pytest.mark.parametrize("path", BODIES)
each_api = pytest.mark.parametrize("path", [path for path in BODIES if path.startswith("/v1")])
