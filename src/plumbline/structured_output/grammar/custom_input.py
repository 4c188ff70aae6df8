"""The input of a custom tool as it stands in a call: inside of a JSON string, or raw between markers.

A grammar speaks of the input, the model writes a call. Where the call is JSON every quote, line end and backslash of
the input stands there as an escape of two characters, so the grammar is written again with these escapes. A grammar
engine reads text in lexemes and never goes back: one that has read a backslash cannot tell any more whether it belongs
to a lexeme or to the next. So a grammar without recursion becomes a single lexeme, and one with recursion is cut into
lexemes before every escape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.structured_output.grammar.lark import (
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
from plumbline.structured_output.grammar.rust_regex import OneOf, Piece, escaped_piece, pieces
from plumbline.turn import LarkFormat, RegexFormat

__all__ = ["InputWriter", "one_line"]

_ANY_RAW = "/(?s:.*)/"
_ANY_ESCAPED = r"""/(?:[^"\\\x00-\x1f]|\\["\\nrtbf])*/"""
_QUANTIFIERS = ("*", "+", "?")
_MAX_STEPS = 4_000_000
"""Names times names that they need: some thousand rules. The time to follow all of them grows with it."""

NewRule = Callable[[str, str], str]
"""Adds a rule to the grammar that is being built: (kind of name, body) to its name."""


def one_line(pattern: str) -> str:
    """A pattern as it stands between slashes in a grammar."""
    found = []
    escaped = False
    for char in pattern:
        found.append("\\/" if char == "/" and not escaped else "\\n" if char == "\n" else char)
        if char == "\n" and escaped:
            found[-2:] = ["\\n"]
        escaped = char == "\\" and not escaped
    return "".join(found)


class InputWriter:
    """Writes one form of an input into a grammar.

    Args:
        form: the form.
        rule: adds a rule.
        named: adds a rule under a name of its own, (name, body), for rules that need themselves.
        escaped: the input stands inside of a JSON string.
        prefix: what names of `named` begin with.

    Raises:
        FormError: the form cannot be held.
    """

    def __init__(
        self,
        form: RegexFormat | LarkFormat,
        rule: NewRule,
        named: Callable[[str, str], None],
        *,
        escaped: bool,
        prefix: str,
    ) -> None:
        if isinstance(form, RegexFormat):
            self._rules = Rules({"start": Leaf(tuple(pieces(form.pattern)))})
        else:
            self._rules = read_lark(form.grammar)
        self._rule = rule
        self._named = named
        self._escaped = escaped
        self._prefix = prefix
        self._terminals: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._reached = _reached(self._rules)
        self.recursive = frozenset(name for name, others in self._reached.items() if name in others)
        """The rules that need themselves."""
        self._gap = ""
        """The name of what the grammar ignores, once it is written."""
        escapes = {name for name, one in self._rules.of.items() if escaped and _is_escaped(one)}
        # JSON escapes something of what these stand for.
        self._splits = escapes | {
            name for name in self._rules.of if not escapes.isdisjoint(self._reached[name])
        }

    def terminal(self) -> str:
        """The whole input as the expression of one lexeme, for a grammar without recursion."""
        return self._terminal("start")

    def rules(self) -> str:
        """The whole input as an expression of rules."""
        return self._of_rule("start")

    # One lexeme

    def _terminal(self, name: str) -> str:
        if name not in self._terminals:
            in_rule = not name.strip("_?!").isupper()
            self._terminals[name] = self._rule("INPUT", self._in_lexeme(self._rules.of[name], in_rule))
        return self._terminals[name]

    def _in_lexeme(self, expression: Expression, in_rule: bool) -> str:
        """An expression as a part of a lexeme.

        Args:
            expression: what to write.
            in_rule: it stands in a rule and not in a terminal, so what the grammar ignores may stand before its parts.
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
                # A negation alone would match half an escape, and what is no text at all.
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
        """The expression of a name inside of a rule."""
        terminal = name.strip("_?!").isupper()
        if terminal and name not in self.recursive and name not in self._splits:
            return self._terminal(name)
        if name not in self._written:
            ours = f"{self._prefix}_{len(self._written)}"
            self._written[name] = ours  # Before its body, which may need it.
            self._named(ours, self._in_rules(self._rules.of[name], ignoring=not terminal))
        return self._written[name]

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
                    "The grammar needs itself and has '&' or '~' in what JSON escapes, which cannot be held together."
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
    """A pattern cut into lexemes of which none but the last character is an escape, as an expression of rules.

    Raises:
        FormError: letters of it are matched in either case, which only a whole pattern can say.
    """
    written: list[str] = []
    run: list[str] = []  # What needs no cutting.
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
                    "The grammar needs itself and matches letters in either case beside what JSON escapes, which "
                    "cannot be held together."
                )
            written.append("(")
        elif piece in _QUANTIFIERS and number and _counts(found[number - 1]):
            if piece != "?" or (number > 1 and _counts(found[number - 2])):
                raise ConstraintError(
                    "The grammar needs itself and repeats a repetition; put that in a group."
                )
            # How much is matched of what may be matched is not for a rule to say.
        else:
            written.append(piece)
    if run:
        written.append(f"/{one_line(''.join(run))}/")
    return f"({' '.join(written)})"


def _counts(piece: Piece) -> bool:
    """Whether this says how often what stands before it is repeated."""
    return isinstance(piece, str) and (piece in _QUANTIFIERS or piece.startswith("{"))


def _one_of(piece: OneOf, *, run: bool) -> str:
    """One character, or with `run` as many of those that stand for themselves as there are."""
    if not piece.escaped:
        return f"/{one_line(escaped_piece(piece))}/"
    options = [
        escaped_piece(OneOf(f"\\x{{{ord(char):x}}}", piece.escaped & {char})) for char in piece.escaped
    ]
    if options == [escaped_piece(piece)]:  # A single character.
        return f"/{options[0]}/"
    raw = escaped_piece(OneOf(piece.inside, frozenset()))
    more = "+" if run else ""
    return f"(/{one_line(raw)}{more}/ | {' | '.join(f'/{option}/' for option in sorted(options))})"


def _is_escaped(expression: Expression) -> bool:
    """Whether JSON escapes a character of the expression itself, the names in it aside."""
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
    """For each name all that it needs, itself only if it needs itself.

    Raises:
        FormError: finding that out takes too long.
    """
    direct = {name: frozenset(named_in(expression)) for name, expression in rules.of.items()}
    if len(direct) * (len(direct) + sum(map(len, direct.values()))) > _MAX_STEPS:
        raise ConstraintError("The grammar has too many rules that need each other.")
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
