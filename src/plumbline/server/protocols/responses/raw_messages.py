"""Write the prompt and the output of a response as text and as tokens (`enable_response_messages`, as in vLLM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plumbline.answer.turn import Turn
from plumbline.contract._generated.responses import CreateResponse, RawMessageTokens, Response
from plumbline.contract.wire.errors import unsupported_value

__all__ = ["RawMessages", "check_raw_messages"]


class RawMessages:
    """The tokens of one response.

    Args:
        prompt: those of the prompt.
        decode: returns the text of tokens, control tokens included.
    """

    def __init__(self, prompt: Sequence[int], decode: Callable[[Sequence[int]], str]) -> None:
        self._prompt = prompt
        self._decode = decode
        self._output: list[int] = []

    def add(self, token_ids: Sequence[int]) -> None:
        """Take more of the output."""
        self._output += token_ids

    def finish(self, response: Response) -> None:
        """Write both into a response that has ended."""
        response.input_messages = [self._raw(self._prompt)]
        response.output_messages = [self._raw(self._output)]

    def _raw(self, token_ids: Sequence[int]) -> RawMessageTokens:
        return RawMessageTokens(message=self._decode(token_ids), tokens=list(token_ids))


def check_raw_messages(request: CreateResponse, turn: Turn) -> None:
    """Refuse `enable_response_messages` where there is not one prompt and one output that ends with the request.

    Raises:
        ApiError: 400.
    """
    if request.enable_response_messages is not True:
        return
    if request.background is True:
        raise unsupported_value(
            "enable_response_messages", True, "is not supported with 'background', as in vLLM"
        )
    if turn.remote is not None:
        raise unsupported_value(
            "enable_response_messages",
            True,
            "is not supported with tools of MCP servers: each round has a prompt of its own",
        )
