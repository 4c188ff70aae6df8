"""Constrain the input of a custom tool inside a call: in a JSON string, or unquoted between markers.

The client's grammar describes the input, but the model writes a call. Where the call is JSON, every quote, line end and
backslash of the input is an escape of two characters, so the grammar is rewritten with these escapes. A grammar engine
reads text in lexemes and never backtracks: it cannot know whether a backslash belongs to this lexeme or to the next.
So a grammar without recursion becomes a single lexeme, and one with recursion is cut into lexemes before every escape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.lark import (
    All,
    Any,
    Expression,
    Leaf,
    Name,
    Not,
    OneAfter,
    Rules,
    Times,
    named_in,
    read_lark,
)
from plumbline.answer.structured_output.grammar.rust_regex import OneOf, Piece, escaped_piece, pieces
from plumbline.answer.turn import LarkFormat, RegexFormat

__all__ = ["InputWriter", "one_line"]

_ANY_RAW = "/(?s:.*)/"
_ANY_ESCAPED = r"""/(?:[^"\\\x00-\x1f]|\\["\\nrtbf])*/"""
_QUANTIFIERS = ("*", "+", "?")
_MAX_STEPS = 4_000_000
"""Bound on rules times references, about a thousand rules. The time to find recursion grows with it."""

NewRule = Callable[[str, str], str]
"""Add a rule to the grammar: takes the prefix of its name and its body, returns its name."""


def one_line(pattern: str) -> str:
    """Return a regex as it is written between slashes in a Lark grammar."""
    found = []
    escaped = False
    for char in pattern:
        found.append("\\/" if char == "/" and not escaped else "\\n" if char == "\n" else char)
        if char == "\n" and escaped:
            found[-2:] = ["\\n"]
        escaped = char == "\\" and not escaped
    return "".join(found)


class InputWriter:
    """Write the constraint of one custom tool's input into a grammar.

    Args:
        constraint: the regex or Lark grammar of the input.
        rule: adds a rule.
        named: adds a rule (name, body) under a given name, for recursive rules.
        escaped: the input is inside a JSON string.
        prefix: prefix of the names for `named`.

    Raises:
        ConstraintError: the constraint cannot be enforced.
    """

    def __init__(
        self,
        constraint: RegexFormat | LarkFormat,
        rule: NewRule,
        named: Callable[[str, str], None],
        *,
        escaped: bool,
        prefix: str,
    ) -> None:
        if isinstance(constraint, RegexFormat):
            self._rules = Rules({"start": Leaf(tuple(pieces(constraint.pattern)))})
        else:
            self._rules = read_lark(constraint.grammar)
        self._rule = rule
        self._named = named
        self._escaped = escaped
        self._prefix = prefix
        self._terminals: dict[str, str] = {}
        self._as_lark: dict[str, str] = {}
        self._reached = _reached(self._rules)
        self.recursive = frozenset(name for name, others in self._reached.items() if name in others)
        """The recursive rules."""
        self._gap = ""
        """The name of the rule for ignored text, once it is written."""
        escapes = {name for name, one in self._rules.of.items() if escaped and _is_escaped(one)}
        # Names of rules that may match a character that JSON escapes.
        self._splits = escapes | {
            name for name in self._rules.of if not escapes.isdisjoint(self._reached[name])
        }

    def terminal(self) -> str:
        """Return the input as the expression of one lexeme, for a grammar without recursion."""
        return self._terminal("start")

    def rules(self) -> str:
        """Return the input as an expression of rules."""
        return self._of_rule("start")

    # One lexeme

    def _terminal(self, name: str) -> str:
        if name not in self._terminals:
            in_rule = not name.strip("_?!").isupper()
            self._terminals[name] = self._rule("INPUT", self._in_lexeme(self._rules.of[name], in_rule))
        return self._terminals[name]

    def _in_lexeme(self, expression: Expression, in_rule: bool) -> str:
        """Return an expression as a part of a lexeme.

        Args:
            expression: the expression to write.
            in_rule: it is in a rule and not in a terminal, so ignored text may precede its parts.
        """
        match expression:
            case Leaf(pieces=found):
                return self._after_ignored(self._leaf(found), in_rule)
            case Name(name=name):
                found_name = self._terminal(name)
                terminal = name.strip("_?!").isupper()
                return self._after_ignored(found_name, in_rule and terminal)
            case OneAfter(parts=parts):
                return f"({' '.join(self._in_lexeme(part, in_rule) for part in parts)})"
            case Any(parts=parts):
                return f"({' | '.join(self._in_lexeme(part, in_rule) for part in parts)})"
            case All(parts=parts):
                return f"({' & '.join(self._in_lexeme(part, in_rule) for part in parts)})"
            case Not(part=part):
                # A negation alone would match half an escape, and invalid UTF-8.
                anything = _ANY_ESCAPED if self._escaped else _ANY_RAW
                return f"({anything} & ~({self._in_lexeme(part, in_rule)}))"
            case Times(part=part, count=count):
                return f"({self._in_lexeme(part, in_rule)}){count}"

    def _after_ignored(self, written: str, in_rule: bool) -> str:
        if not in_rule or not self._rules.ignored:
            return written
        if not self._gap:
            ignored = " | ".join(self._in_lexeme(part, False) for part in self._rules.ignored)
            self._gap = self._rule("IGNORED", f"({ignored})*")
        return f"({self._gap} {written})"

    def _leaf(self, found: tuple[Piece, ...]) -> str:
        pattern = "".join(
            piece
            if isinstance(piece, str)
            else escaped_piece(piece)
            if self._escaped
            else f"[{piece.inside}]"
            for piece in found
        )
        return f"/{one_line(pattern)}/" if pattern else '""'

    # Rules

    def _of_rule(self, name: str) -> str:
        """Return the expression of a name inside a rule."""
        terminal = name.strip("_?!").isupper()
        if terminal and name not in self.recursive and name not in self._splits:
            return self._terminal(name)
        if name not in self._as_lark:
            ours = f"{self._prefix}_{len(self._as_lark)}"
            self._as_lark[name] = ours  # Before its body, which may refer to it.
            self._named(ours, self._in_rules(self._rules.of[name], ignoring=not terminal))
        return self._as_lark[name]

    def _in_rules(self, expression: Expression, *, ignoring: bool) -> str:
        match expression:
            case Leaf(pieces=found):
                written = self._leaf(found)
                if self._escaped and _is_escaped(expression):
                    written = _cut(found)
                return self._ignoring(written) if ignoring else written
            case Name(name=name):
                written = self._of_rule(name)
                return self._ignoring(written) if ignoring and name.strip("_?!").isupper() else written
            case OneAfter(parts=parts):
                return f"({' '.join(self._in_rules(part, ignoring=ignoring) for part in parts)})"
            case Any(parts=parts):
                return f"({' | '.join(self._in_rules(part, ignoring=ignoring) for part in parts)})"
            case Times(part=part, count=count):
                return f"({self._in_rules(part, ignoring=ignoring)}){count}"
            case All() | Not():
                raise ConstraintError(
                    "The grammar is recursive and uses '&' or '~' on characters that JSON escapes; these cannot be "
                    "combined."
                )

    def _ignoring(self, written: str) -> str:
        if not self._rules.ignored:
            return written
        if not self._gap:
            self._gap = f"{self._prefix}_ignored"
            ignored = " | ".join(self._in_rules(part, ignoring=False) for part in self._rules.ignored)
            self._named(self._gap, f"({ignored})*")
        return f"({self._gap} {written})"


def _cut(found: tuple[Piece, ...]) -> str:
    """Cut a regex into lexemes in which only the last character is an escape; returns an expression of rules.

    Raises:
        ConstraintError: the regex has case-insensitive parts, which cannot be cut.
    """
    written: list[str] = []
    run: list[str] = []  # Pieces without escapes, which need no cutting.
    for number, piece in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) else ""
        counted = _counts(after)
        if isinstance(piece, OneOf) and not piece.escaped and not counted:
            run.append(escaped_piece(piece))
            continue
        if run:
            written.append(f"/{one_line(''.join(run))}/")
            run = []
        if isinstance(piece, OneOf):
            last = after in ("*", "+") and number + 2 == len(found)
            written.append(_one_of(piece, run=last))
        elif piece.startswith("("):
            if piece != "(?:":
                raise ConstraintError(
                    "The grammar is recursive and has a case-insensitive regex with characters that JSON escapes; "
                    "these cannot be combined."
                )
            written.append("(")
        elif piece in _QUANTIFIERS and number and _counts(found[number - 1]):
            if piece != "?" or (number > 1 and _counts(found[number - 2])):
                raise ConstraintError(
                    "The grammar is recursive and repeats a repetition; put the inner one into a group."
                )
            # A lazy quantifier has no effect in a rule, so it is left out.
        else:
            written.append(piece)
    if run:
        written.append(f"/{one_line(''.join(run))}/")
    return f"({' '.join(written)})"


def _counts(piece: Piece) -> bool:
    """Return whether this piece is a quantifier."""
    return isinstance(piece, str) and (piece in _QUANTIFIERS or piece.startswith("{"))


def _one_of(piece: OneOf, *, run: bool) -> str:
    """Return an expression for one character, or with `run` for several characters that JSON does not escape."""
    if not piece.escaped:
        return f"/{one_line(escaped_piece(piece))}/"
    options = [
        escaped_piece(OneOf(f"\\x{{{ord(char):x}}}", piece.escaped & {char})) for char in piece.escaped
    ]
    if options == [escaped_piece(piece)]:  # The class has a single character.
        return f"/{options[0]}/"
    raw = escaped_piece(OneOf(piece.inside, frozenset()))
    more = "+" if run else ""
    return f"(/{one_line(raw)}{more}/ | {' | '.join(f'/{option}/' for option in sorted(options))})"


def _is_escaped(expression: Expression) -> bool:
    """Return whether JSON escapes a character of the expression, not counting the names that it refers to."""
    match expression:
        case Leaf(pieces=found):
            return any(isinstance(piece, OneOf) and piece.escaped for piece in found)
        case OneAfter(parts=parts) | Any(parts=parts) | All(parts=parts):
            return any(map(_is_escaped, parts))
        case Not(part=part) | Times(part=part):
            return isinstance(expression, Not) or _is_escaped(part)
        case _:
            return False


def _reached(rules: Rules) -> Mapping[str, frozenset[str]]:
    """Return for each name all names that it refers to, directly or not; a recursive name includes itself.

    Raises:
        ConstraintError: the grammar has too many rules.
    """
    direct = {name: frozenset(named_in(expression)) for name, expression in rules.of.items()}
    if len(direct) * (len(direct) + sum(map(len, direct.values()))) > _MAX_STEPS:
        raise ConstraintError("The grammar has too many rules that refer to each other.")
    found: dict[str, frozenset[str]] = {}
    for name in direct:
        seen: set[str] = set()
        left = list(direct[name])
        while left:
            other = left.pop()
            if other not in seen:
                seen.add(other)
                left += direct[other]
        found[name] = frozenset(seen)
    return found
