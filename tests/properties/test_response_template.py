"""Laws of response templates, beyond those of dialects.

* The parser of transformers gives the same message.
* A marker of calls in prose is prose.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.parsing.dialects import cut, fold
from support.parsing.plans import NAMES, sizes
from support.parsing.response_templates import TEMPLATES, Template
from transformers.utils.chat_parsing import parse_response

from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance
from plumbline.answer.events import TextDelta

laws = settings(max_examples=EXPLORED or 40)
CALLING = [template for template in TEMPLATES if template.has_calls]
_SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}

words = st.text("abc déf", min_size=1, max_size=12).map(str.strip).filter(bool)
calls = st.lists(st.tuples(st.sampled_from(NAMES), words, st.integers()), max_size=3)


def rendered(
    template: Template, thought: str | None, said: str | None, called: list[tuple[str, str, int]]
) -> str:
    """Write an answer, without calls if the template has none."""
    listed = [WrittenCall(name, json.dumps({"s": s, "n": n}, ensure_ascii=False)) for name, s, n in called]
    return template.write(
        Utterance((*([said] if said else []), *(listed if template.has_calls else [])), thought)
    )


@laws
@given(st.none() | words, st.none() | words, calls)
def test_transformers_reads_the_same(
    thought: str | None, said: str | None, called: list[tuple[str, str, int]]
) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": _SCHEMA}} for name in NAMES]
    for template in TEMPLATES:
        text = rendered(template, thought, said, called)
        theirs: dict[str, Any] = parse_response(text, template.source, prefix="", tools=tools)
        parser = template.parser(schema=_SCHEMA)
        ours = fold([*parser.push(TextDelta(text)), *parser.finish("stop")])
        thoughts = [value for key, value in theirs.items() if key not in ("role", "content", "tool_calls")]
        assert ours.reasoning == "".join(thoughts), (template, text)
        assert ours.content == theirs.get("content", ""), (template, text)
        several = theirs.get("tool_calls", [])
        flat = [call for each in several for call in (each if isinstance(each, list) else [each])]
        assert [(call.name, json.loads(call.arguments)) for call in ours.calls] == [
            (call["function"]["name"], call["function"]["arguments"]) for call in flat
        ], (template, text)


@laws
@given(words, words, sizes)
def test_a_marker_of_calls_in_prose_is_prose(before: str, after: str, lengths: list[int]) -> None:
    for template in CALLING:
        text = f"{before} {template.marker} {after}"
        found, _ = template.read(cut(template.write(Utterance((text,))), lengths))
        assert (found.content, found.calls) == (text, []), template
