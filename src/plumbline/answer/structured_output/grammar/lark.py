"""Parse Lark grammars of custom tools, in the part of the language that can be rewritten.

A grammar becomes one expression for each of its names. Strings and regexes are parsed down to characters
(`plumbline.answer.structured_output.grammar.rust_regex`), because JSON escapes some of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import msgspec

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.rust_regex import Piece, literal, pieces

__all__ = [
    "All",
    "Any",
    "Expression",
    "Leaf",
    "Name",
    "Not",
    "OneAfter",
    "Rules",
    "Times",
    "named_in",
    "read_lark",
]


class Leaf(msgspec.Struct, frozen=True):
    """A string, a range or a regex."""

    pieces: tuple[Piece, ...]


class Name(msgspec.Struct, frozen=True):
    """A reference to another rule or terminal."""

    name: str


class OneAfter(msgspec.Struct, frozen=True):
    """A sequence of expressions."""

    parts: tuple[Expression, ...]


class Any(msgspec.Struct, frozen=True):
    """One of several expressions."""

    parts: tuple[Expression, ...]


class All(msgspec.Struct, frozen=True):
    """The intersection of several expressions."""

    parts: tuple[Expression, ...]


class Not(msgspec.Struct, frozen=True):
    """The complement of an expression."""

    part: Expression


class Times(msgspec.Struct, frozen=True):
    """A repetition of an expression: `*`, `+`, `?` or `{2,3}`."""

    part: Expression
    count: str


Expression = Leaf | Name | OneAfter | Any | All | Not | Times


class Rules(msgspec.Struct, frozen=True):
    """The rules and terminals of a grammar.

    Attributes:
        of: the expression of each name, `start` among them. Names in capital letters are terminals.
        ignored: expressions of `%ignore`, which may stand between terminals.
    """

    of: Mapping[str, Expression]
    ignored: tuple[Expression, ...] = ()


def read_lark(grammar: str) -> Rules:
    """Parse a Lark grammar.

    Raises:
        ConstraintError: the text is not a grammar, or uses an unsupported feature: attributes of rules, templates,
            special tokens, nested grammars or schemas, imports other than Lark's common terminals.
    """
    return _Reader(with_plain_names(grammar)).read()


def with_plain_names(grammar: str) -> str:
    """Return a grammar without what names have for Lark's trees and its lexer alone: `!`, `?` and priorities.

    >>> with_plain_names('?start: A\\n!A.2: "x"')
    'start: A\\nA: "x"'
    """
    return _HEAD.sub(r"\1\2", grammar)


_HEAD = re.compile(r"(?m)^([ \t]*)[?!]*(\w+)(?:\.-?\d+)?(?=[ \t]*:)")


def named_in(expression: Expression) -> Iterator[str]:
    """Yield the names in an expression."""
    match expression:
        case Name(name=name):
            yield name
        case OneAfter(parts=parts) | Any(parts=parts) | All(parts=parts):
            for part in parts:
                yield from named_in(part)
        case Not(part=part) | Times(part=part):
            yield from named_in(part)


_TOKEN = re.compile(
    r"(?P<space>[ \t\f\r]+|(?://|\#)[^\n]*)|(?P<line>\n)"
    r'|(?P<string>"(?:\\.|[^"\\\n])*"i?)'
    r"|(?P<regex>/(?:\\.|[^/\\\n])+/[imslux]*)"
    r"|(?P<name>(?:(?m:^)[?!])?_?[A-Za-z][A-Za-z0-9_]*)|(?P<number>[0-9]+)|(?P<directive>%[a-z]+)"
    r"|(?P<op>->|\.\.|[:|&~*+?(){},.\[\]])",
    re.DOTALL,
)
_MAX_DEPTH = 100


class _Reader:
    def __init__(self, grammar: str) -> None:
        self._tokens = list(_tokens(grammar))
        self._pos = 0
        self._depth = 0
        self._rules: dict[str, Expression] = {}
        self._ignored: list[Expression] = []

    def read(self) -> Rules:
        while self._peek() != ("end", ""):
            kind, text = self._next()
            if kind == "line":
                continue
            if kind == "name":
                self._rule(text.lstrip("?!"))
            elif text == "%import":
                self._import()
            elif text == "%ignore":
                self._ignored.append(self._alternatives())
            else:
                raise _unsupported(text)
        rules, missing = dict(self._rules), []
        for expression in (*self._rules.values(), *self._ignored):
            missing += [name for name in named_in(expression) if name not in rules]
        if missing:
            raise ConstraintError(f"The grammar has no rule {missing[0]!r}.")
        if "start" not in rules:
            raise ConstraintError("The grammar has no rule 'start'.")
        return Rules(rules, tuple(self._ignored))

    def _rule(self, name: str) -> None:
        if self._peek()[1] != ":":
            raise _unsupported(f"{name}{self._peek()[1]}", "attributes, priorities and parameters of rules")
        self._pos += 1
        if name in self._rules:
            raise ConstraintError(f"The grammar defines {name!r} twice.")
        self._rules[name] = self._alternatives()

    def _import(self) -> None:
        if (self._next(), self._next()[1]) != (("name", "common"), "."):
            if self._tokens[self._pos - 1][1] != "(":
                raise _unsupported("%import", "imports other than 'common'")
            while (token := self._next())[1] != ")":
                if token[0] == "name":
                    self._common(token[1], token[1])
            return
        name = alias = self._next()[1]
        if self._peek()[1] == "->":
            self._pos += 1
            alias = self._next()[1]
        self._common(name, alias)

    def _common(self, name: str, alias: str) -> None:
        if name not in _COMMON:
            raise _unsupported(f"common.{name}")
        self._rules[alias] = Leaf(tuple(pieces(_COMMON[name])))

    def _alternatives(self) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConstraintError(f"The grammar is nested more than {_MAX_DEPTH} deep.")
        found = [self._conjunction()]
        while True:
            ahead = self._pos
            while self._tokens[ahead][0] == "line":
                ahead += 1
            if self._tokens[ahead][1] != "|":
                break
            self._pos = ahead + 1
            found.append(self._conjunction())
        self._depth -= 1
        return found[0] if len(found) == 1 else Any(tuple(found))

    def _conjunction(self) -> Expression:
        found = [self._sequence()]
        while self._peek()[1] == "&":
            self._pos += 1
            found.append(self._sequence())
        if self._peek()[1] == "->":  # An alias for the parse tree, which is not needed here.
            self._pos += 2
        return found[0] if len(found) == 1 else All(tuple(found))

    def _sequence(self) -> Expression:
        found: list[Expression] = []
        if self._peek()[0] == "line" and self._tokens[self._pos + 1][1] == "|" and self._depth == 1:
            return Leaf(())  # Alternatives that begin on a new line: the empty text is not one of them.
        while self._peek()[0] in ("string", "regex", "name") or self._peek()[1] in ("(", "[", "~"):
            found.append(self._repeated())
        return found[0] if len(found) == 1 else OneAfter(tuple(found)) if found else Leaf(())

    def _repeated(self) -> Expression:
        if self._peek()[1] == "~":
            self._pos += 1
            part: Expression = Not(self._atom())
        else:
            part = self._atom()
        text = self._peek()[1]
        if text and text in "*+?":
            self._pos += 1
            return Times(part, text)
        if text == "{" or (text == "~" and self._tokens[self._pos + 1][0] == "number"):
            self._pos += 1
            return Times(part, self._count(closed=text == "{"))
        return part

    def _count(self, *, closed: bool) -> str:
        least = self._next()[1]
        most = least
        if self._peek()[1] in (",", ".."):
            self._pos += 1
            most = self._next()[1] if self._peek()[0] == "number" else ""
        if closed and self._next()[1] != "}":
            raise ConstraintError("The grammar has a '{' that does not begin a repetition.")
        if not least.isdigit() or max(len(least), len(most)) > 4:
            raise ConstraintError("The grammar has a repetition without a number, or with one above 9999.")
        return f"{{{least},{most}}}"

    def _atom(self) -> Expression:
        kind, text = self._next()
        if kind == "string":
            if self._peek()[1] == "..":
                self._pos += 1
                low, high = _string(text), _string(self._next()[1])
                if len(low) != 1 or len(high) != 1:
                    raise ConstraintError("The grammar has a range with ends that are not single characters.")
                escaped = f"\\x{{{ord(low):x}}}-\\x{{{ord(high):x}}}"
                return Leaf(tuple(pieces(f"[{escaped}]")))
            found: list[Piece] = literal(_string(text))
            return Leaf(("(?i:", *found, ")") if text.endswith("i") else tuple(found))
        if kind == "regex":
            body, _, flags = text[1:].rpartition("/")
            body = body.replace(r"\/", "/")
            if flags:
                pieces(
                    body
                )  # Parsed separately first, so that no bracket in it closes the group of its flags.
            return Leaf(tuple(pieces(f"(?{flags}:{body})" if flags else body)))
        if kind == "name":
            return Name(text)
        if text in ("(", "["):
            while self._peek()[0] == "line":
                self._pos += 1
            inner = self._alternatives()
            while self._peek()[0] == "line":
                self._pos += 1
            if self._next()[1] != {"(": ")", "[": "]"}[text]:
                raise ConstraintError("The grammar has a bracket that is not closed.")
            return inner if text == "(" else Times(inner, "?")
        raise _unsupported(text)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._pos]

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._pos]
        if token[0] != "end":
            self._pos += 1
        return token


def _tokens(grammar: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(grammar):
        match = _TOKEN.match(grammar, position)
        if match is None:
            raise _unsupported(grammar[position : position + 20].split("\n")[0])
        position = match.end()
        if match.lastgroup != "space":
            yield str(match.lastgroup), match.group()
    yield "end", ""


def _string(text: str) -> str:
    """Return the text of a Lark string, with the escapes of JSON and `\\xHH`."""
    quoted = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text.removesuffix("i"))
    try:
        found = json.loads(quoted, strict=False)
    except ValueError:
        raise ConstraintError(f"The grammar has a string that cannot be read: {text[:40]}") from None
    return str(found)


def _unsupported(text: str, what: str = "") -> ConstraintError:
    reason = f" ({what})" if what else ""
    return ConstraintError(
        f"The grammar has {text[:40]!r}{reason}, which is not supported in the input of a tool."
    )


_INT = "[0-9]+"
_DECIMAL = rf"(?:{_INT}\.(?:{_INT})?|\.{_INT})"
_EXP = f"[eE][+-]?{_INT}"
_FLOAT = f"(?:{_INT}{_EXP}|{_DECIMAL}(?:{_EXP})?)"
_NUMBER = f"(?:{_FLOAT}|{_INT})"
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": _INT,
    "SIGNED_INT": f"[+-]?{_INT}",
    "DECIMAL": _DECIMAL,
    "_EXP": _EXP,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": _NUMBER,
    "SIGNED_NUMBER": f"[+-]?{_NUMBER}",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""Lark's common terminals, as Lark defines them. Its strings contain no line ends."""
