"""A builder of grammars as dialects want one, and whether a text is in the language of a grammar.

Tokens are bytes here, and no token is a control token: what is tried is which texts a grammar has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

__all__ = ["Language", "LarkBuilder"]


class _Bytes:
    """A tokenizer whose tokens are the bytes, and one that ends a sequence."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<eos>")
    special_token_ids = (256,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


_TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))


class LarkBuilder:
    """Expressions are pieces of llguidance's Lark; rules are collected on the way."""

    def __init__(self) -> None:
        self._rules: list[str] = []

    def literal(self, text: str) -> str:
        """Exactly this text."""
        return json.dumps(text)

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """One JSON document that satisfies the schema."""
        return self._rule("json", f"%json {json.dumps(schema)}")

    def regex(self, pattern: str) -> str:
        """Text that matches the pattern."""
        return self._rule("PATTERN", f"/{pattern}/")

    def until(self, marker: str) -> str:
        """Any text without the marker, then the marker."""
        escaped = re.sub(r"[.+*?()|\[\]{}^$/\\]", r"\\\g<0>", marker).replace("\n", "\\n")
        return self._rule("UNTIL", f"/(?s:.*){escaped}/ & ~/(?s:.*){escaped}(?s:.+)/")

    def choice(self, expressions: list[str]) -> str:
        """One of these."""
        return f"({' | '.join(expressions)})"

    def sequence(self, expressions: list[str]) -> str:
        """All of these, in order."""
        return f"({' '.join(expressions)})"

    def optional(self, expression: str) -> str:
        """This or nothing."""
        return f"({expression})?"

    def repeat(self, expression: str, minimum: int, maximum: int | None) -> str:
        """This several times."""
        return f"({expression}){{{minimum},{'' if maximum is None else maximum}}}"

    def build(self, start: str) -> str:
        """The grammar that begins with this expression."""
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules, ""])

    def _rule(self, kind: str, body: str) -> str:
        name = f"{kind}_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name


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
