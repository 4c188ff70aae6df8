"""Define the errors of the road, from a prompt that does not fit to an engine that fails."""

from __future__ import annotations

from plumbline.port.engine import TokenChunk

__all__ = [
    "AbortedError",
    "ConstraintFailedError",
    "EmptyPromptError",
    "EngineDiedError",
    "GenerationError",
    "NoThinkingError",
    "PromptTooLongError",
    "raise_if_failed",
]


class PromptTooLongError(Exception):
    """Prompt and requested output do not fit the context window (ERR-09)."""

    def __init__(self, *, max_model_len: int, prompt_tokens: int, output_tokens: int) -> None:
        super().__init__(
            f"{prompt_tokens} prompt tokens and {output_tokens} output tokens exceed {max_model_len}"
        )
        self.max_model_len = max_model_len
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens


class EmptyPromptError(Exception):
    """The prompt has no tokens, so there is nothing to continue."""


class NoThinkingError(Exception):
    """A thinking budget cannot be enforced: the model's thinking markers are unknown, or the engine has no budgets."""


class GenerationError(Exception):
    """The engine failed while it answered. The message is fit for the client."""


class EngineDiedError(GenerationError):
    """The engine's process ended while it answered; another one may answer the same request."""


class ConstraintFailedError(GenerationError):
    """The engine accepted the constraint of an answer and could not keep to it; the constraint is at fault."""


class AbortedError(Exception):
    """The request was ended from outside: the server is shutting down."""


def raise_if_failed(chunk: TokenChunk) -> None:
    """Check the last chunk of an answer.

    Raises:
        GenerationError: the engine failed.
        AbortedError: the server is shutting down.
    """
    if chunk.finish_reason == "error":
        failed = GenerationError
        if chunk.died:
            failed = EngineDiedError
        elif chunk.refused:
            failed = ConstraintFailedError
        raise failed(chunk.error or "The engine failed.")
    if chunk.finish_reason == "abort":
        raise AbortedError("The server is shutting down.")
