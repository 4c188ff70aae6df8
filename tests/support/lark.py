"""Whether a text is in the language of a grammar.

Tokens are bytes here, and no token is a control token: what is tried is which texts a grammar has.
"""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

__all__ = ["EngineFailureError", "Language"]


class EngineFailureError(ValueError):
    """The grammar engine failed of itself: it has a panic, where it should have a grammar or a reason.

    A server refuses such a grammar (`test_a_pattern_that_the_engine_fails_on_is_refused`). What it would have meant
    cannot be asked of the engine.
    """


class _Bytes:
    """A tokenizer whose tokens are the bytes, and one that ends a sequence."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<eos>")
    special_token_ids = (256,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


_TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))


class Language:
    """The texts of a grammar.

    Raises:
        EngineFailureError: the grammar engine failed on it.
        ValueError: the grammar is none.
    """

    def __init__(self, grammar: str) -> None:
        self._matcher = LLMatcher(_TOKENIZER, grammar)
        if self._matcher.is_error():
            error = self._matcher.get_error()
            kind = EngineFailureError if error.startswith("panic") else ValueError
            raise kind(f"{error}\n{grammar}")

    def has(self, text: str) -> bool:
        """Whether the whole text is one of them."""
        matcher = self._matcher.deep_copy()
        tokens = list(text.encode())
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
