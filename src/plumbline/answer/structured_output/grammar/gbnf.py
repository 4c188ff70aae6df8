"""Translate GBNF, llama.cpp's notation of grammars, to Lark."""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

from plumbline.answer.structured_output.grammar.errors import ConstraintError

__all__ = ["is_gbnf", "to_lark"]

_MAX_RULES = 500
"""llguidance looks at all rules once for each link of their longest chain."""
_MAX_CHARACTERS = 65536
"""Translation takes about 2 us a character."""

_RULE = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)
_TERMINAL = re.compile(r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]|#[^\n]*')
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)")


def is_gbnf(grammar: str) -> bool:
    """Return whether a grammar has rules as GBNF writes them (`root ::= …`); Lark has `start: …`."""
    return _RULE.search(grammar) is not None


def to_lark(grammar: str) -> str:
    """Translate a GBNF grammar that starts with the rule `root`.

    Source: `grammars/README.md` of llama.cpp.

    Raises:
        ConstraintError: the grammar is malformed, has no rule `root`, or is above 65,536 characters or 500 rules.
    """
    if len(grammar) > _MAX_CHARACTERS:
        raise ConstraintError(
            f"The grammar has {len(grammar)} characters; this server accepts at most {_MAX_CHARACTERS}."
        )
    if grammar.count("::=") > _MAX_RULES:
        raise ConstraintError(f"The grammar has more than {_MAX_RULES} rules.")
    try:
        return str(gbnf_to_lark(_joined(_TERMINAL.sub(_without_code_points, grammar))))
    except RecursionError as error:
        raise ConstraintError("The grammar is nested too deeply.") from error
    except Exception as error:  # the library raises bare exceptions for missing and repeated rules
        raise ConstraintError(f"The grammar is not valid GBNF: {error}.") from error


def _joined(grammar: str) -> str:
    """Join alternatives that begin a line to the rule above, as XGrammar's notation allows and llama.cpp's does not."""
    plain = _TERMINAL.sub(lambda found: "" if found[0].startswith("#") else found[0], grammar)
    return _CONTINUED.sub(lambda found: found[1] or " | ", plain)


_CONTINUED = re.compile(rf"((?:{_TERMINAL.pattern}))|(?:[ \t\r]*\n)+[ \t]*\|")


def _without_code_points(found: re.Match[str]) -> str:
    r"""Write `\u00e9` in a string or a class as the character: llguidance strips the zeros of the number."""
    text = found.group()
    if text.startswith("#"):
        return text
    in_class = text.startswith("[")

    def character(escape: re.Match[str]) -> str:
        kind, digits = escape.group()[1], escape.group()[2:]
        if not digits or (kind == "x" and in_class):
            return escape.group()
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise ConstraintError(f"The grammar has {escape.group()}, which is not a character.")
        written = chr(code)
        if in_class and written in "^-":
            return f"\\x{code:02x}"
        return f"\\{written}" if written in ("\\][" if in_class else '\\"') else written

    return _ESCAPE.sub(character, text)
