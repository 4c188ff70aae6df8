"""Builds grammars, in llguidance's dialect of Lark, out of expressions.

Text and control tokens are not the same thing here, as they are not in a prompt: a control token is never text, so no
text of a grammar can match it and it is named by its id. Every other added token is text as well, and may come as one
token or spelled out: whoever reads the answer reads text and cannot tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from plumbline.structured_output.grammar.custom_input import InputWriter, one_line
from plumbline.structured_output.grammar.ecma_regex import check_repetitions
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.structured_output.grammar.json_schema import checked
from plumbline.structured_output.grammar.raw_string import input_form, text_conditions
from plumbline.turn import LarkFormat, RegexFormat

__all__ = ["GrammarBuilder"]

_MAX_SEQUENCES = 60_000
_LARK_END = re.compile(r"(?m)^\s*\??start\b")
_JSON_LEXEMES = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[,:] ?|[^"{}\[\],:]+|"')


class GrammarBuilder:
    """Collects the rules of one grammar.

    Every method but `build` returns an expression: a string that may stand in other expressions of the same builder.

    Args:
        added: Added tokens of the tokenizer by their text, control tokens or not.
        special_ids: The ids of those that are control tokens.
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
        self._before = ""
        self._as_json = False

    def literal(self, text: str) -> str:
        """Exactly this text. Control tokens in it are the tokens themselves."""
        text, self._before = self._before + text, ""
        lexemes = _JSON_LEXEMES.findall(text) if self._as_json else [text]
        return self.sequence(_written(piece) for lexeme in lexemes for piece in self._pieces(lexeme))

    @contextmanager
    def literals(self, *, before: str = "", as_json: bool = False) -> Iterator[None]:
        """Write the literals within so that a lexer, which never goes back, can tell them from another text.

        Args:
            before: joined with the first of them, to be one lexeme with it: what begins otherwise is the other text.
            as_json: they are cut into the lexemes of JSON, because the other text is a document of JSON.
        """
        self._before, self._as_json = before, as_json
        try:
            yield
        finally:
            self._before, self._as_json = "", False

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """One JSON document that satisfies the schema, in the layout that `json_schema` describes.

        Raises:
            FormError: the schema cannot be held as it is.
        """
        if isinstance(schema, Mapping):
            form = input_form(schema)
            if form is not None:
                return self._quoted_input(form)
            members = schema.get("properties")
            if isinstance(members, Mapping) and list(members) == ["input"]:
                form = input_form(members["input"])
                if form is not None:  # The arguments of a custom tool.
                    before = self._rule("BEFORE", '/\\{"input": ?/')
                    return self.sequence([before, self._quoted_input(form), '"}"'])
        return self._rule("json", f"%json {json.dumps(checked(schema))}")

    def raw_string(
        self,
        schema: Mapping[str, Any],
        after: str,
        marker: str,
        *,
        or_null: bool = False,
        not_first: str = "",
    ) -> str:
        """Raw text that satisfies a schema of strings, up to what its reader takes for its end.

        Args:
            schema: lengths, pattern and format are held, or the form of a custom tool's input; whoever calls sees to
                the rest.
            after: what follows the text; it ends with the marker.
            marker: where the reader ends the text; it does not occur earlier.
            or_null: the text may also be `null`.
            not_first: what the text does not begin with; empty for nothing.

        Raises:
            FormError: the schema cannot be held in raw text.
            ValueError: `after` is empty.
        """
        form = input_form(schema)
        if form is not None:
            writer = self._input_writer(form, escaped=False)
            if writer.recursive:
                return self._raw_rules(writer, after, [marker, *([not_first] if not_first else [])])
            return self._ended(_not_first(writer.terminal(), not_first), after, marker)
        conditions = text_conditions(schema)
        if not conditions and not not_first:
            return self.until(after, without=[marker])
        held = " & ".join(conditions) or _free([])
        held = f"({held}) | /null/" if or_null else held
        return self._ended(_not_first(held, not_first), after, marker)

    def _ended(self, text: str, after: str, marker: str) -> str:
        """Text of a lexeme, and what follows it; the marker is found where it ends and not before."""
        pieces = self._pieces(after)
        if not pieces:
            raise ValueError("what follows a text must not be empty")
        first, rest = pieces[0], pieces[1:]
        spelled = one_line(re.escape(marker)) if self._spelled([marker]) else ""
        if isinstance(first, int):
            without = f" & ~/(?s:.*){spelled}(?s:.*)/" if spelled else ""
            return self.sequence([self._rule("RAW", f"({text}){without}"), *map(_written, pieces)])
        ended = f"({text}) {_written(first)}"
        if spelled and marker in first:
            # One that begins earlier, be it in the text alone or in its last characters and the first of the marker.
            further = len(first) - first.index(marker) - len(marker) + 1
            ended = f"({ended}) & ~/(?s:.*){spelled}(?s:.){{{further},}}/"
        return self.sequence([self._rule("RAW", ended), *map(_written, rest)])

    def _raw_rules(self, writer: InputWriter, after: str, markers: list[str]) -> str:
        if spelled := self._spelled(markers):
            raise ConstraintError(
                f"The grammar needs itself, and this model writes inputs as raw text in which {spelled[0]!r} is "
                "not text: that the input does not have it cannot be held. Use a grammar without recursion."
            )
        return self.sequence([writer.rules(), self.literal(after)])

    def _quoted_input(self, form: RegexFormat | LarkFormat) -> str:
        """A form of input inside of a JSON string."""
        writer = self._input_writer(form, escaped=True)
        if writer.recursive:
            return self.sequence([r'"\""', writer.rules(), r'"\""'])
        return self._rule("QUOTED", rf'"\"" {writer.terminal()} "\""')

    def _input_writer(self, form: RegexFormat | LarkFormat, *, escaped: bool) -> InputWriter:
        prefix = f"input_{len(self._named)}"
        return InputWriter(form, self._rule, self._named.__setitem__, escaped=escaped, prefix=prefix)

    def regex(self, pattern: str, not_begun: Iterable[str] = ()) -> str:
        """Text that matches the whole pattern (the syntax of Rust's `regex`: no look-around, no back-references).

        Matching is greedy: what follows in a sequence begins where the pattern cannot go on.

        Args:
            pattern: the pattern.
            not_begun: texts that it does not begin with.

        Raises:
            FormError: it repeats something too often.
        """
        check_repetitions(pattern)
        if not pattern:
            return '""'
        kept_out = one_line("|".join(map(re.escape, self._spelled(not_begun))))
        without = f" & ~/({kept_out})(?s:.*)/" if kept_out else ""
        return self._rule("PATTERN", f"/{one_line(pattern)}/{without}")

    def text(self, without: Iterable[str] = (), not_first: str = "") -> str:
        """Any text, also none, in which none of these texts occurs; no control tokens.

        Args:
            without: the texts.
            not_first: characters that it does not begin with, be it after white space.
        """
        return self._rule("TEXT", _free(self._spelled(without), not_first))

    def until(self, marker: str, without: Iterable[str] = (), not_first: str = "") -> str:
        """Any text up to the first occurrence of the marker, and the marker; `without` and `not_first` as in `text`.

        Raises:
            ValueError: the marker is empty.
        """
        pieces = self._pieces(marker)
        if not pieces:
            raise ValueError("a marker must not be empty")
        free = _free(self._spelled(without), not_first)
        first, rest = pieces[0], pieces[1:]
        if isinstance(first, int):
            return self.sequence([self.text(without, not_first), *map(_written, pieces)])
        ending = self._rule("ENDING", f"({free}) {_written(first)}")
        if not rest:
            return self._rule("until", ending, options="[lazy]")
        # The control token says where the text ends, so the text before it is not cut short by being lazy.
        return self.sequence([ending, *map(_written, rest)])

    def choice(self, expressions: Iterable[str]) -> str:
        """One of these.

        Raises:
            ValueError: there is none.
        """
        found = list(dict.fromkeys(expressions))
        if not found:
            raise ValueError("a choice needs at least one expression")
        return found[0] if len(found) == 1 else f"({' | '.join(found)})"

    def sequence(self, expressions: Iterable[str]) -> str:
        """These, one after the other; none of them is the empty text."""
        found = list(expressions)
        self._sequences += 1
        if self._sequences > _MAX_SEQUENCES:
            # Where markup spells objects out, what a schema refers to many times over is written as many times.
            raise ConstraintError(
                "The grammar of the calls is too large: their parameters refer to too much."
            )
        if not found:
            return '""'
        return found[0] if len(found) == 1 else f"({' '.join(found)})"

    def one_of(self, texts: Iterable[str]) -> str:
        """Exactly one of these texts, of which there may be thousands.

        Raises:
            ValueError: there is none.
        """
        found = list(dict.fromkeys(texts))
        plain = {text: None for text in found if text and self._pieces(text) == [text]}
        if len(plain) < 2:
            return self.choice(map(self.literal, found))
        # One lexeme for all: of lexemes that may begin at one place llguidance keeps no more than 2,000.
        lexeme = self._rule("TEXTS", " | ".join(map(_written, plain)))
        return self.choice([lexeme, *(self.literal(text) for text in found if text not in plain)])

    def optional(self, expression: str) -> str:
        """This or nothing."""
        return f"({expression})?"

    def repeat(self, expression: str, minimum: int = 0, maximum: int | None = None) -> str:
        """This from `minimum` to `maximum` times; None means any number.

        Raises:
            ValueError: the bounds contradict each other.
        """
        if minimum < 0 or (maximum is not None and maximum < minimum):
            raise ValueError(f"cannot repeat from {minimum} to {maximum} times")
        if maximum is None and minimum < 2:
            return f"({expression}){'+' if minimum else '*'}"
        return f"({expression}){{{minimum},{'' if maximum is None else maximum}}}"

    def lark(self, grammar: str) -> str:
        """A whole grammar with its rule `start`; its names and those of this builder do not meet.

        Raises:
            FormError: there is no rule `start`.
        """
        if _LARK_END.search(grammar) is None:
            raise ConstraintError("The grammar has no rule 'start'.")
        name = next((name for name, known in self._nested.items() if known == grammar), None)
        if name is None:
            name = f"nested_{len(self._nested)}"
            self._nested[name] = grammar
        return f"@{name}"

    def build(self, start: str) -> str:
        """The grammar that begins with this expression: Lark text, or JSON around several where some are nested."""
        rules = [f"start: {start}", *(f"{name}{body}" for body, name in self._rules.items())]
        rules += [f"{name}: {body}" for name, body in self._named.items()]
        main = "%llguidance {}\n" + "\n".join(rules) + "\n"
        if not self._nested:
            return main
        nested = [{"name": name, "lark_grammar": grammar} for name, grammar in self._nested.items()]
        return json.dumps({"grammars": [{"name": "main", "lark_grammar": main}, *nested]})

    def _rule(self, kind: str, body: str, *, options: str = "") -> str:
        """The name of a rule with this body; equal bodies share one. Upper case makes it one lexeme."""
        return self._rules.setdefault(f"{options}: {body}", f"{kind}_{len(self._rules)}")

    def _spelled(self, markers: Iterable[str]) -> list[str]:
        """Those that text could contain: a control token is never in it."""
        return [marker for marker in markers if all(isinstance(piece, str) for piece in self._pieces(marker))]

    def _pieces(self, text: str) -> list[str | int]:
        """Text and the ids of control tokens, in order."""
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


def _written(piece: str | int) -> str:
    """Text as a string of Lark, which are those of JSON; an id as a token."""
    return f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece)


def _not_first(text: str, beginning: str) -> str:
    """Text of a lexeme that does not begin like this."""
    return f"({text}) & ~/{one_line(re.escape(beginning))}(?s:.*)/" if beginning else text


def _free(without: list[str], not_first: str = "") -> str:
    """Any text without these that does not begin so. A negation alone would match what is not UTF-8, too."""
    free = "/(?s:.*)/"
    if not_first:
        kept_out = "".join(rf"\x{{{ord(char):x}}}" for char in not_first)
        free = rf"/[ \t\r\n]*([^ \t\r\n{kept_out}](?s:.*))?/"
    if not without:
        return free
    kept_out = one_line("|".join(map(re.escape, without)))
    return f"{free} & ~/(?s:.*)({kept_out})(?s:.*)/"
