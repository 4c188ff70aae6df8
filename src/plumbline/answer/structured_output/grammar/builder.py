"""Build grammars in llguidance's dialect of Lark from expressions.

An expression is a string of Lark: a rule's name, a literal, or a sequence of them. Methods return expressions and
register the rules that these need, so a caller composes an answer's grammar from the inside out and `build` writes all
rules once. Schemas become llguidance's `%json`, after `json_schema.checked` has rewritten what it cannot enforce.

llguidance cuts text into lexemes before it parses and never goes back, so alternatives must differ within their first
lexeme, or be cut alike: `literals` prepares the texts of an alternative for that. As in prompts, text never matches a
control token: the grammar names control tokens by id. Other added tokens are text, and the model may write their text
as one token or as several. Everything that is written is counted, and a grammar beyond the bounds is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from plumbline.answer.structured_output.grammar.custom_input import InputWriter, one_line
from plumbline.answer.structured_output.grammar.ecma_regex import check_repetitions, in_rust_spelling
from plumbline.answer.structured_output.grammar.errors import TOO_COMPLEX, ConstraintError
from plumbline.answer.structured_output.grammar.json_schema import checked
from plumbline.answer.structured_output.grammar.lark import with_plain_names
from plumbline.answer.structured_output.grammar.numbers.exact import UNREACHABLE, lark_with_exact_numbers
from plumbline.answer.structured_output.grammar.raw_string import input_constraint, text_conditions
from plumbline.answer.turn import LarkFormat, RegexFormat

__all__ = ["GrammarBuilder"]

_MAX_SEQUENCES = 60_000
_MAX_TEXT = 16 * 1024 * 1024
"""Characters of all rules and sequences of a grammar."""
_LARK_START = re.compile(r"(?m)^\s*start\b")
_JSON_LEXEMES = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[,:] ?|[^"{}\[\],:]+|"')


class GrammarBuilder:
    """Collect the rules of one grammar.

    Every method except `build` returns an expression: a string to use in other expressions of the same builder.

    Args:
        added: ids of the tokenizer's added tokens by their text, control tokens or not.
        special_ids: the ids of control tokens.
    """

    def __init__(self, added: Mapping[str, int], special_ids: frozenset[int]) -> None:
        special = {text: token_id for text, token_id in added.items() if token_id in special_ids}
        longest_first = sorted(special, key=len, reverse=True)
        self._special = special
        self._splitter = re.compile("|".join(map(re.escape, longest_first))) if special else None
        self._rules: dict[str, str] = {}
        self._named: dict[str, str] = {}
        self._nested: dict[str, str] = {}
        self._sequences = 0
        self._length = 0
        self._before = ""
        self._as_json = False
        self._relaxed: bool | None = None
        self._of: str | None = ""
        self.given_up: Collection[str] = ()
        """Keywords of relaxed schemas that are not enforced because the engine has refused them; see `checked`."""
        self.notes: dict[str, None] = {}
        """The places of keywords that are not enforced, such as `#/properties/a/format`; those of the parameters of a
        tool begin with its name."""

    @contextmanager
    def relaxing(self, relaxed: bool, of: str | None = "") -> Iterator[None]:
        """Set whether the JSON Schemas of a `with` block may be enforced in part.

        Args:
            relaxed: leave out the keywords that cannot be enforced, and note it.
            of: what the notes begin with; None for schemas that are parts of another, whose places say nothing.
        """
        self._relaxed, self._of = relaxed, of
        try:
            yield
        finally:
            self._relaxed, self._of = None, ""

    def note(self, place: str) -> None:
        """Note that a keyword of the schemas of this block is not enforced."""
        if self._of is not None:
            self.notes[f"{self._of}{place}"] = None

    def literal(self, text: str) -> str:
        """Match exactly this text; control tokens in it match as tokens."""
        text, self._before = self._before + text, ""
        lexemes = _JSON_LEXEMES.findall(text) if self._as_json else [text]
        return self.sequence(_as_lark(piece) for lexeme in lexemes for piece in self._pieces(lexeme))

    @contextmanager
    def literals(self, *, before: str = "", as_json: bool = False) -> Iterator[None]:
        """Write the literals of a `with` block so that the lexer can tell them from an alternative text.

        The lexer never backtracks, so the two alternatives must differ within their first lexeme or have equal lexemes.

        Args:
            before: text to join with the block's first literal to one lexeme; the alternative begins differently.
            as_json: cut the literals into the lexemes of JSON, because the alternative is a JSON document.
        """
        self._before, self._as_json = before, as_json
        try:
            yield
        finally:
            self._before, self._as_json = "", False

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """Match one JSON document that satisfies the schema, in the layout that `json_schema` describes.

        Raises:
            ConstraintError: the schema cannot be enforced.
        """
        if isinstance(schema, Mapping):
            constraint = input_constraint(schema)
            if constraint is not None:
                return self._quoted_input(constraint)
            members = schema.get("properties")
            if isinstance(members, Mapping) and list(members) == ["input"]:
                constraint = input_constraint(members["input"])
                if constraint is not None:  # The arguments of a custom tool.
                    before = self._rule("BEFORE", '/\\{"input": ?/')
                    return self.sequence([before, self._quoted_input(constraint), '"}"'])
        relaxed, notes = self._relaxed is True, list[str]()
        found = checked(
            schema,
            relaxed=relaxed,
            given_up=self.given_up if relaxed else (),
            notes=notes,
            compose=(lambda kind, body: self._rule(kind, f" {body}"), self._named.__setitem__),
        )
        for place in notes:
            self.note(place)
        if isinstance(found, str):
            return found
        return self._rule("json", f"%json {json.dumps(found)}")

    def raw_string(
        self,
        schema: Mapping[str, Any],
        after: str,
        marker: str,
        *,
        or_null: bool = False,
        not_first: str = "",
    ) -> str:
        """Match an unquoted string that satisfies a string schema, up to the marker that ends it.

        Args:
            schema: its length, pattern and format are enforced, or the constraint of a custom tool's input; the caller
                handles other keywords.
            after: the text after the string; it contains the marker.
            marker: the parser ends the string at the first occurrence of the marker.
            or_null: the string may also be `null`.
            not_first: text that the string must not begin with; empty for none.

        Raises:
            ConstraintError: the schema cannot be enforced in an unquoted string.
            ValueError: `after` is empty.
        """
        constraint = input_constraint(schema)
        if constraint is not None:
            writer = self._input_writer(constraint, escaped=False)
            if writer.recursive:
                return self._recursive_raw_string(
                    writer, after, [marker, *([not_first] if not_first else [])]
                )
            return self._ended(_not_first(writer.terminal(), not_first), after, marker)
        conditions = text_conditions(schema)
        if not conditions and not not_first:
            return self.until(after, without=[marker])
        allowed = " & ".join(conditions) or _free([])
        allowed = f"({allowed}) | /null/" if or_null else allowed
        return self._ended(_not_first(allowed, not_first), after, marker)

    def _ended(self, text: str, after: str, marker: str) -> str:
        """Match the text of a lexeme, then `after`; the first occurrence of the marker is the one in `after`."""
        pieces = self._pieces(after)
        if not pieces:
            raise ValueError("`after` must not be empty")
        first, rest = pieces[0], pieces[1:]
        matchable = one_line(re.escape(marker)) if self._matchable([marker]) else ""
        if isinstance(first, int):
            without = f" & ~/(?s:.*){matchable}(?s:.*)/" if matchable else ""
            return self.sequence([self._rule("RAW", f"({text}){without}"), *map(_as_lark, pieces)])
        ended = f"({text}) {_as_lark(first)}"
        if matchable and marker in first:
            # Exclude a marker that begins earlier, in the text or across its end.
            further = len(first) - first.index(marker) - len(marker) + 1
            ended = f"({ended}) & ~/(?s:.*){matchable}(?s:.){{{further},}}/"
        return self.sequence([self._rule("RAW", ended), *map(_as_lark, rest)])

    def _recursive_raw_string(self, writer: InputWriter, after: str, markers: list[str]) -> str:
        if matchable := self._matchable(markers):
            raise ConstraintError(
                f"The grammar is recursive, and this model writes inputs as unquoted text, which must not contain "
                f"{matchable[0]!r}. That cannot be enforced for a recursive grammar."
            )
        return self.sequence([writer.rules(), self.literal(after)])

    def _quoted_input(self, constraint: RegexFormat | LarkFormat) -> str:
        """Match a constrained input inside a JSON string."""
        writer = self._input_writer(constraint, escaped=True)
        if writer.recursive:
            return self.sequence([r'"\""', writer.rules(), r'"\""'])
        return self._rule("QUOTED", rf'"\"" {writer.terminal()} "\""')

    def _input_writer(self, constraint: RegexFormat | LarkFormat, *, escaped: bool) -> InputWriter:
        prefix = f"input_{len(self._named)}"
        return InputWriter(constraint, self._rule, self._named.__setitem__, escaped=escaped, prefix=prefix)

    def regex(self, pattern: str, not_first: Iterable[str] = ()) -> str:
        """Match text that the whole regex matches (Rust syntax: no look-around, no back-references).

        Matching is greedy: the next expression of a sequence begins where the regex cannot continue.

        Args:
            pattern: the regex.
            not_first: texts that the match must not begin with.

        Raises:
            ConstraintError: the regex repeats something too often.
        """
        pattern = in_rust_spelling(pattern)
        check_repetitions(pattern)
        if not pattern:
            return '""'
        kept_out = one_line("|".join(map(re.escape, self._matchable(not_first))))
        without = f" & ~/({kept_out})(?s:.*)/" if kept_out else ""
        return self._rule("PATTERN", f"/{one_line(pattern)}/{without}")

    def text(self, without: Iterable[str] = (), not_first_chars: str = "") -> str:
        """Match any text, possibly empty, without control tokens.

        Args:
            without: texts that must not occur in it.
            not_first_chars: characters that it must not begin with, also after white space; empty for none.
        """
        return self._rule("TEXT", _free(self._matchable(without), not_first_chars))

    def until(self, marker: str, without: Iterable[str] = (), not_first_chars: str = "") -> str:
        """Match any text through the first occurrence of the marker; `without` and `not_first_chars` as in `text`.

        Raises:
            ValueError: the marker is empty.
        """
        pieces = self._pieces(marker)
        if not pieces:
            raise ValueError("a marker must not be empty")
        free = _free(self._matchable(without), not_first_chars)
        first, rest = pieces[0], pieces[1:]
        if isinstance(first, int):
            return self.sequence([self.text(without, not_first_chars), *map(_as_lark, pieces)])
        ending = self._rule("ENDING", f"({free}) {_as_lark(first)}")
        if not rest:
            return self._rule("until", ending, options="[lazy]")
        # The control token ends the text, so lazy matching does not cut the text before it.
        return self.sequence([ending, *map(_as_lark, rest)])

    def choice(self, expressions: Iterable[str]) -> str:
        """Match one of these expressions.

        Raises:
            ValueError: `expressions` is empty.
        """
        found = list(dict.fromkeys(expressions))
        if not found:
            raise ValueError("a choice needs at least one expression")
        return found[0] if len(found) == 1 else f"({' | '.join(found)})"

    def sequence(self, expressions: Iterable[str]) -> str:
        """Match these expressions one after the other; none of them may be the empty text."""
        found = list(expressions)
        self._sequences += 1
        if self._sequences > _MAX_SEQUENCES:
            # Formats with a rule per property repeat a definition for every reference to it.
            raise ConstraintError(
                "The grammar of the tool calls is too large: their parameters have too many references."
            )
        if not found:
            return '""'
        if len(found) == 1:
            return found[0]
        self._grow(sum(map(len, found)))
        return f"({' '.join(found)})"

    def _grow(self, count: int) -> None:
        self._length += count
        if self._length > _MAX_TEXT:
            raise ConstraintError(TOO_COMPLEX)

    def one_of(self, texts: Iterable[str]) -> str:
        """Match exactly one of these texts; thousands are possible.

        Raises:
            ValueError: `texts` is empty.
        """
        found = list(dict.fromkeys(texts))
        plain = {text: None for text in found if text and self._pieces(text) == [text]}
        if len(plain) < 2:
            return self.choice(map(self.literal, found))
        # One lexeme for all, because llguidance allows at most 2,000 lexemes at one position.
        lexeme = self._rule("TEXTS", " | ".join(map(_as_lark, plain)))
        return self.choice([lexeme, *(self.literal(text) for text in found if text not in plain)])

    def optional(self, expression: str) -> str:
        """Match this expression or nothing."""
        return f"({expression})?"

    def repeat(self, expression: str, minimum: int = 0, maximum: int | None = None) -> str:
        """Match this expression `minimum` to `maximum` times; None means any number.

        Raises:
            ValueError: the bounds contradict each other.
        """
        minimum, maximum = int(minimum), None if maximum is None or maximum >= UNREACHABLE else int(maximum)
        if minimum < 0 or (maximum is not None and maximum < minimum):
            raise ValueError(f"cannot repeat from {minimum} to {maximum} times")
        if maximum is None and minimum < 2:
            return f"({expression}){'+' if minimum else '*'}"
        return f"({expression}){{{minimum},{'' if maximum is None else maximum}}}"

    def lark(self, grammar: str) -> str:
        """Match a whole Lark grammar with its rule `start`; its names do not conflict with this builder's.

        Raises:
            ConstraintError: the grammar has no rule `start`, or a schema in it a number that cannot be enforced.
        """
        grammar = with_plain_names(grammar)
        if _LARK_START.search(grammar) is None:
            raise ConstraintError("The grammar has no rule 'start'.")
        grammar = lark_with_exact_numbers(grammar)
        name = next((name for name, known in self._nested.items() if known == grammar), None)
        if name is None:
            name = f"nested_{len(self._nested)}"
            self._nested[name] = grammar
        return f"@{name}"

    def build(self, start: str) -> str:
        """Return the grammar with this start expression: Lark text, or JSON with several if some are nested."""
        rules = [f"start: {start}", *(f"{name}{body}" for body, name in self._rules.items())]
        rules += [f"{name}: {body}" for name, body in self._named.items()]
        main = "%llguidance {}\n" + "\n".join(rules) + "\n"
        if not self._nested:
            return main
        nested = [{"name": name, "lark_grammar": grammar} for name, grammar in self._nested.items()]
        return json.dumps({"grammars": [{"name": "main", "lark_grammar": main}, *nested]})

    def _rule(self, kind: str, body: str, *, options: str = "") -> str:
        """Return the name of a rule with this body; equal bodies share a rule. An upper-case kind is one lexeme."""
        whole = f"{options}: {body}"
        if whole not in self._rules:
            self._grow(len(whole))
            self._rules[whole] = f"{kind}_{len(self._rules)}"
        return self._rules[whole]

    def _matchable(self, markers: Iterable[str]) -> list[str]:
        """Return the markers that text can contain, which are those without control tokens."""
        return [marker for marker in markers if all(isinstance(piece, str) for piece in self._pieces(marker))]

    def _pieces(self, text: str) -> list[str | int]:
        """Split text into strings and ids of control tokens, in order."""
        if self._splitter is None:
            return [text] if text else []
        found: list[str | int] = []
        position = 0
        for match in self._splitter.finditer(text):
            if match.start() > position:
                found.append(text[position : match.start()])
            found.append(self._special[match.group()])
            position = match.end()
        if position < len(text):
            found.append(text[position:])
        return found


def _as_lark(piece: str | int) -> str:
    """Return text as a Lark string, which has JSON's syntax, and an id as a token."""
    return f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece)


def _not_first(text: str, beginning: str) -> str:
    """Restrict the text of a lexeme to texts that do not begin like this."""
    return f"({text}) & ~/{one_line(re.escape(beginning))}(?s:.*)/" if beginning else text


def _free(without: list[str], not_first_chars: str = "") -> str:
    """Match text without `without` that does not begin with a `not_first_chars` character.

    A negation alone would also match bytes that are not UTF-8.
    """
    free = "/(?s:.*)/"
    if not_first_chars:
        kept_out = "".join(rf"\x{{{ord(char):x}}}" for char in not_first_chars)
        free = rf"/[ \t\r\n]*([^ \t\r\n{kept_out}](?s:.*))?/"
    if not without:
        return free
    kept_out = one_line("|".join(map(re.escape, without)))
    return f"{free} & ~/(?s:.*)({kept_out})(?s:.*)/"
