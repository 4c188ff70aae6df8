"""Whether a text is in the language of a grammar.

Tokens are bytes here, and no token is a control token: what is tried is which texts a grammar has.
"""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

__all__ = ["Language"]


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
        ValueError: the grammar is none.
    """

    def __init__(self, grammar: str) -> None:
        self._matcher = LLMatcher(_TOKENIZER, grammar)
        if self._matcher.is_error():
            raise ValueError(f"{self._matcher.get_error()}\n{grammar}")

    def has(self, text: str) -> bool:
        """Whether the whole text is one of them."""
        matcher = self._matcher.deep_copy()
        tokens = list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
