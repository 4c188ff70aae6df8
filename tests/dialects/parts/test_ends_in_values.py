"""The end of a section inside a string between tags is a part of the string, in every tagged dialect."""

from __future__ import annotations

import json

from support.parsing.dialects import DIALECTS

from plumbline.answer.dialects.formats.tagged import TaggedCall
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance


def test_a_string_may_contain_the_end_of_its_section() -> None:
    tried = 0
    for dialect in DIALECTS:
        if dialect.tool is None or not isinstance(dialect.call_format, TaggedCall):
            continue
        for close in dialect.tool.sections[0].close:
            for value in (f"x{close}", f"x {close}\n{close}"):
                arguments = {"city": value}
                call = WrittenCall("f", json.dumps(arguments))
                text = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
                for pieces in ([text], list(text)):
                    (read,) = dialect.read(pieces)[0].calls
                    assert (json.loads(read.arguments), read.complete) == (arguments, True), (dialect, value)
                    tried += 1
    assert tried > 50
