"""Inputs of custom tools: what a call lets through is what its grammar lets through, whatever the call escapes."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from support.lark import EngineFailureError, Language
from support.laws import EXPLORED

from plumbline.answer.dialects.parsers.custom_tools import CustomCalls
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.events import TextDelta, ToolCallDelta
from plumbline.answer.structured_output.grammar.builder import GrammarBuilder
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.raw_string import INPUT_CONSTRAINT
from plumbline.answer.structured_output.tool_calls import calls
from plumbline.answer.turn import LarkFormat, RegexFormat, Tool

from .walk import accepts, builder, frame, model_dialect, sampled

laws = settings(max_examples=EXPLORED or 30)

PATCH = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""The grammar of a tool that edits files, in the style in which agents write theirs."""

GOOD_PATCHES = [
    "*** Begin Patch\n*** Delete File: a.py\n*** End Patch",
    '*** Begin Patch\n*** Update File: a "b".py\n@@ def f():\n-    x = "\\n"\n+\ty = 1\n \n*** End of File\n'
    "*** End Patch\n",
    "*** Begin Patch\n*** Add File: é🎉\n+\n+\\\\\n*** Update File: b\n*** Move to: c\n*** End Patch",
]
BAD_PATCHES = [
    "",
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch\n*** Delete File: a.py\\n*** End Patch",
    "*** Begin Patch\n*** Update File: a\n@ def\n*** End Patch",
    "*** Begin Patch\n*** Add File: a\nno plus\n*** End Patch",
    "*** Begin Patch\n*** Delete File: a.py\n*** End Patch\n\n",
]


def escaped(form: RegexFormat | LarkFormat) -> Language:
    """Return a grammar of JSON strings of constrained inputs."""
    built = GrammarBuilder({}, frozenset())
    return Language(built.build(built.json({"type": "string", INPUT_CONSTRAINT: form})))


def unquoted_inputs(form: RegexFormat | LarkFormat, after: str = "</x>") -> Language:
    """Return a grammar of unquoted inputs before a marker."""
    built = GrammarBuilder({}, frozenset())
    return Language(
        built.build(built.raw_string({"type": "string", INPUT_CONSTRAINT: form}, after, after.strip()))
    )


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


ATOMS = [
    "a",
    "n",
    '"',
    r"\\",
    r"\n",
    r"\t",
    ".",
    r"\s",
    r"\S",
    r"\w",
    r"\W",
    r"\d",
    r"\D",
    r"\x22",
    r"\u{5c}",
]
ATOMS += ["[an]", '[^"]', r"[^\n]", r"[\\t]", r"[^\s]", r"[ -~&&[^a]]", r"[\s--\n]", "[[:punct:]]", r"\p{P}"]
ATOMS += [r"\PL", r"[a-\x{10ffff}]", "é", "(?s:.)", "(?i:N)", r"(?i:\n)", "/"]
patterns = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)
words = st.text('an"\\\n\tN é/', max_size=6)


@laws
@given(pattern=patterns, several=st.lists(words, min_size=1, max_size=12))
@example(pattern=r'"*\\', several=['"\\', "\\", '"'])
@example(pattern='[^--"]', several=['"', "-", "a"])
@example(pattern='[--"]', several=['"', "-", "a"])
@example(pattern='[&&]"]', several=['"]', '"'])
def test_a_regex_matches_the_same_inputs_in_json_and_without(pattern: str, several: list[str]) -> None:
    """A regex matches the same inputs directly, escaped for JSON, and unquoted before a marker."""
    built = GrammarBuilder({}, frozenset())
    try:
        plain = Language(built.build(built.regex(pattern)))
        in_json, in_tags = escaped(RegexFormat(pattern)), unquoted_inputs(RegexFormat(pattern))
    except EngineFailureError:
        reject()  # Some alternatives inside of others are too much for the engine (tests/engines/test_grammar.py).
    for word in several:
        fits = plain.has(word)
        assert in_json.has(quoted(word)) == fits, word
        assert in_tags.has(f"{word}</x>") == fits, word


GRAMMARS = [
    ('start: A B\nA: /[a"]+/\nB: "\\n" | "n"', r'[a"]+(\n|n)'),
    ("start: line+\nline: /.*/ NL\nNL: /\\r?\\n/", r"([^\n]*\n)+"),
    ('start: x ("," x)*\nx: "a".."n"+ | STRING\nSTRING: /"[^"]*"/', r'([a-n]+|"[^"]*")(,([a-n]+|"[^"]*"))*'),
    ('start: T\nT: /[an"\\\\]+/ & ~/(?s:.*)nn(?s:.*)/', r'(?!.*nn)[an"\\]+'),
    ('start: T "\\\\"\nT: ~("a" | "n") & /[an]{1,3}/', r"(?!a\\\Z|n\\\Z)[an]{1,3}\\"),
    ('start: "a" "n"i /\\//\n%ignore /[ \\n]+/', r"[ \n]*a[ \n]*[nN][ \n]*/"),
    ('start: ["a"] "n"~2..3\n  | "\\""{2}', r'a?n{2,3}|""'),
    ("%import common.NEWLINE -> NL\nstart: NL\n | W NL\n%import common.WORD -> W", r"[A-Za-z]*(\r?\n)+"),
]
symbols = st.text('an"\\\n,/ N', max_size=7)


@pytest.mark.parametrize(("grammar", "pattern"), GRAMMARS)
def test_a_grammar_without_recursion_matches_as_its_regex(grammar: str, pattern: str) -> None:
    """Python's `re` is the oracle, so that the grammar engine is not compared with itself."""
    in_json, in_tags = escaped(LarkFormat(grammar)), unquoted_inputs(LarkFormat(grammar))
    plain, expected = Language(grammar), re.compile(pattern)

    @settings(max_examples=EXPLORED // 10 or 8)
    @given(
        word=symbols
        | st.from_regex(expected, fullmatch=True).filter(str.isprintable)
        | symbols.map(str.strip)
    )
    def law(word: str) -> None:
        fits = expected.fullmatch(word) is not None
        assert in_json.has(quoted(word)) == fits, word
        assert in_tags.has(f"{word}</x>") == (fits and "</x>" not in word), word
        assert fits or not plain.has(word), word

    law()


RECURSIVE = [
    'start: v\nv: "{" S ":" v "}" | S | v NL\nS: "\\"" /[^"\\n]*/ "\\""\nNL: /\\n/',
    'start: e\ne: e "+" e | "(" e ")" | "a" | "\\\\"',
    'start: x\nx: "a" x "n" | "\\n"\n%ignore / /',
    'start: x\nx: "[" (x ("," x)*)? "]" | /("|n)*a/',
    'start: x\nx: "[" x "]" | /("){2}?a*?/',
]
structure = st.text('{}:"a\n+()\\n [],', max_size=9)


@pytest.mark.parametrize("grammar", RECURSIVE)
def test_a_recursive_grammar_matches_the_same_inputs_in_json(grammar: str) -> None:
    plain, in_json = Language(grammar), escaped(LarkFormat(grammar))
    built = builder()
    ours = built.build(built.json({"type": "string", INPUT_CONSTRAINT: LarkFormat(grammar)}))
    drawn = [
        sampled(ours, seed, limit=15, most=120, hints=('"', '\\":\\"a\\"', '\\"', "}")) for seed in range(12)
    ]
    found = [str(json.loads(text)) for text in drawn if text is not None]
    assert found
    # What the plain grammar lets begin with what it ignores is not worth a difference.
    assert all(plain.has(word.lstrip(" ")) for word in found), found

    @settings(max_examples=EXPLORED // 10 or 8)
    @given(
        word=structure
        | st.sampled_from(found).flatmap(lambda one: st.integers(0, len(one)).map(lambda n: one[n:]))
    )
    def law(word: str) -> None:
        assert in_json.has(quoted(word)) == plain.has(word.lstrip(" ") if "%ignore" in grammar else word), (
            word
        )

    law()


def test_no_character_has_two_spellings() -> None:
    anything = escaped(RegexFormat("(?s:.*)"))
    assert anything.has('"a\\n\\"\\\\é"')
    for text in ('"\\u0061"', '"\\/"', '"\n"', '"\x01"', '"\\"', '"a"b"', "a"):
        assert not anything.has(text), text


@pytest.mark.parametrize("name", sorted({dialect.name for dialect in TOOL_DIALECTS.values()}))
def test_a_patch_is_enforced_in_every_dialect(name: str) -> None:
    """TOOL-14, for a grammar as agents send it: good inputs go through as the dialect writes them, others do not."""
    if name == "harmony":
        pytest.skip("harmony ends a call by an end of sequence, which is no text")
    dialect = TOOL_DIALECTS[name]
    tool = Tool(name="patch", custom=True, parameters=None, input_format=LarkFormat(PATCH))
    built = builder()
    grammar = built.build(calls(built, dialect, [tool], parallel=False))
    for patch in GOOD_PATCHES + BAD_PATCHES:
        text = render_calls(
            [WrittenCall("patch", json.dumps({"input": patch}, ensure_ascii=False))], dialect.sections[0]
        )
        assert accepts(grammar, text) == (patch in GOOD_PATCHES), text
    for patch in GOOD_PATCHES:
        text = render_calls(
            [WrittenCall("patch", json.dumps({"input": patch}, ensure_ascii=False))], dialect.sections[0]
        )
        schema = {"type": "object", "properties": {"input": {"type": "string"}}}
        parser = model_dialect(dialect).parser({"patch": schema}, frame())
        events = CustomCalls(["patch"]).translate([*parser.push(TextDelta(text)), *parser.finish("stop")])
        assert "".join(e.arguments for e in events if isinstance(e, ToolCallDelta)) == patch


def test_unquoted_inputs_end_where_the_parser_ends_them() -> None:
    for after in ("</x>", "\n</x>"):
        anything = unquoted_inputs(RegexFormat("(?s:.*)"), after)
        assert anything.has(f"a<b</x{after}")
        assert not anything.has(f"a</x>b{after}")
    doubled = unquoted_inputs(RegexFormat("[ab]*"), "aba")
    assert doubled.has("bbaba")
    assert not doubled.has("abaaba")
    assert not doubled.has("bababa")  # The marker begins in the text and ends in itself.


@pytest.mark.parametrize(
    "grammar",
    [
        "start: <special>",
        'start: %json {"type": "object"}',
        'start[lazy]: "a"',
        "start: x",
        'x: "a"',
        'start: "a',
        "start: /a(?=b)/",
        r"start: /\bfoo/",
        r"start: /\p{Greek}/",
        "start: 'a'",
        "%import other.X\nstart: X",
        'start: "a"\nstart: "b"',
        'start: ("a"',
        "start: /(?x) a/",
        "start: " + "(" * 200 + '"a"' + ")" * 200,
        'start: /"a/ start | T\nT: ~"\\n"',
        'start: /"?+a/ start | "b"',
        "start: /a)|(b/i",
        # What would take minutes to write is refused at once.
        'start: a0 "\\""\n' + "".join(f"a{n}: a{n + 1}?\n" for n in range(30_000)) + "a30000: start?",
    ],
)
def test_unsupported_grammars_are_refused(grammar: str) -> None:
    with pytest.raises(ConstraintError):
        escaped(LarkFormat(grammar))


def test_ignored_text_has_one_rule() -> None:
    """A rule at each place would be 250,000, which are more than a grammar may have."""
    ignored = "".join(f'%ignore "{n}"\n' for n in range(500))
    body = " ".join(['"x"'] * 500)
    for end in ("", " start?"):
        language = escaped(LarkFormat(f"start: {body}{end}\n{ignored}"))
        assert language.has('"' + "7x" * 500 + '"')
        assert not language.has('"' + "x" * 499 + '"')


def test_rules_that_nest_too_deeply_are_refused_as_such() -> None:
    chain = "start: a0\n" + "".join(f"a{n}: a{n + 1}\n" for n in range(800)) + 'a800: "x"'
    tool = Tool(name="f", custom=True, input_format=LarkFormat(chain))
    with pytest.raises(ConstraintError, match="nested too deeply"):
        calls(builder(), TOOL_DIALECTS["hermes"], [tool], parallel=False)


def test_unquoted_inputs_do_not_begin_with_what_the_parser_strips() -> None:
    dialect = TOOL_DIALECTS["minicpm5"]
    for form in (None, RegexFormat("(?s:.*)")):
        built = builder()
        tool = Tool(name="f", custom=True, input_format=form)
        grammar = built.build(calls(built, dialect, [tool], parallel=False))
        for text in ("a<![CDATA[b]]>", "<![CDATA"):
            written = render_calls([WrittenCall("f", json.dumps({"input": text}))], dialect.sections[0])
            assert accepts(grammar, written), text
        written = render_calls([WrittenCall("f", json.dumps({"input": "<![CDATA[b"}))], dialect.sections[0])
        assert not accepts(grammar, written)
