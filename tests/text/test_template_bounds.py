"""Bounds of chat templates: time, memory and depth end a rendering with an error, and change nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.answer.text.templates import workers
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError, TemplateSpec
from plumbline.answer.text.templates.workers import Rendering, WorkerTemplate, rendering_now
from plumbline.base.workers.pool import Bounds

USER = [{"role": "user", "content": "x"}]
TWICE = (
    "{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(40) %}"
    "{% set ns.x = (ns.x, ns.x) %}{% set ns.y = (ns.y, ns.y) %}{% endfor %}"
)
"""Two tuples of forty levels that share their entries: 2**40 entries for whatever walks them."""
ENDLESS = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "a condition of a loop": "{% for a in range(99999) if range(9999) | sum < 0 %}{% endfor %}",
    "calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a comparison": TWICE + "{{ ns.x == ns.y }}",
    "membership": TWICE + "{{ ns.x in [ns.y] }}",
    "sorting": TWICE + "{{ [ns.x, ns.y] | sort }}",
    "uniqueness": TWICE + "{{ [(ns.x, ns.y)] | unique | list }}",
    "text of a list": TWICE + "{{ ns.x | string | length }}",
    "output": TWICE + "{{ ns.x }}",
    "JSON": TWICE + "{{ ns.x | tojson }}",
    "pretty printing": TWICE + "{{ ns.x | pprint }}",
    "a power": "{{ (2 ** 10000000000) % 7 }}",
    "a constant": "{% set x = (3 ** 100000000) % 7 %}{{ x }}",
    "a number in another base": "{{ ('1' * 9000000) | int(base=2) // 3 % 7 }}" * 40,
    "a regular expression": "{{ ('((((' * 400000) | urlize }}",
}
"""Operations that take years, or hours."""
GROWING = {
    "times": "{{ 'x' * 100000000000 }}",
    "times, of a list": "{{ [1] * 10000000000 }}",
    "a format": "{{ ('{0:999999}' * 40000).format(1) }}",
    "a width": "{{ '%100000000000d' % 1 }}",
    "a width of the time": "{{ strftime_now('%10000d' * 60000000) }}",
    "JSON": "{{ [1] | tojson(indent=100000000000) }}",
    "a constant": "{% set x = ('x' * 1000000) * 1000000 %}",
    "joins": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "lists": "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "padding": "{{ 'x'.center(100000000000) }}",
    "indentation": "{{ 'x' | indent(100000000000, true) }}",
    "replacements": "{% set a = 'x' * 600000 %}{{ a.replace('x', a) }}",
    "a list that is joined": "{% set a = 'x' * 60000 %}{{ ([a] * 600000) | join }}",
    "output": "{% set a = 'x' * 600000 %}{% for i in range(60000) %}{{ a }}{% endfor %}",
    "filler": "{{ lipsum(n=1000000) }}",
}
"""Operations that make more than the memory of a worker."""


@pytest.fixture(scope="module")
def rendering() -> Iterator[Rendering]:
    """A worker with little time and memory."""
    patch = pytest.MonkeyPatch()
    patch.setattr(workers, "_BOUNDS", Bounds(0.3, 5.0, 128 << 20, 1 << 20))
    with rendering_now() as found:
        yield found
    patch.undo()


def rendered(rendering: Rendering, source: str, messages: list[dict[str, Any]] = USER, **options: Any) -> str:
    spec = TemplateSpec(source, source, (), None)
    return WorkerTemplate(spec, rendering.facts(spec), rendering).render(messages, **options)


@pytest.mark.parametrize("source", [*ENDLESS.values(), *GROWING.values()], ids=[*ENDLESS, *GROWING])
def test_a_template_that_exceeds_a_bound_is_an_error_and_the_next_one_renders(
    source: str, rendering: Rendering
) -> None:
    """Neither when its constants are computed nor when it runs does it take more than it may have."""
    with pytest.raises(
        TemplateError, match=r"CPU time|of memory|a prompt of more than|MemoryError|not valid"
    ):
        rendered(rendering, source)
    assert rendered(rendering, "{{ messages[0].content }}") == "x"


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).with_name("templates").glob("*.jinja")), ids=lambda path: path.stem
)
def test_a_worker_renders_what_the_process_renders(path: Path, rendering: Rendering) -> None:
    source = path.read_text("utf-8")
    messages = [
        {"role": "system", "content": "Be \ud83d brief."},
        {"role": "user", "content": "Hi \x00 there"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    tools = [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    ]
    for options in (
        {},
        {"tools": tools},
        {"add_generation_prompt": False},
        {"kwargs": {"enable_thinking": False}},
    ):
        found = []
        for render in (
            ChatTemplate(source).render,
            lambda *given, **named: rendered(rendering, source, *given, **named),
        ):
            try:
                found.append(render(messages, **options))
            except TemplateError as error:
                found.append(str(error))
        assert found[0] == found[1]


def test_a_template_that_is_not_valid_is_named_by_the_worker_as_by_the_process(rendering: Rendering) -> None:
    for source in ("{% for %}", "{{ x | unknown }}", "x" * 1_048_577):
        with pytest.raises(TemplateError) as here:
            ChatTemplate(source)
        with pytest.raises(TemplateError) as there:
            rendered(rendering, source)
        assert str(here.value) == str(there.value)


def test_filters_give_what_they_give_elsewhere() -> None:
    for source, text in {
        "{{ 'ab' ~ 1 ~ none ~ ['c'] }}": "ab1None['c']",
        "{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ [1] + [2] }}": "ababab1024[1, 2]",
        "{{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }}{{ [1] | tojson(indent=1) }}": "1-2[\n 1\n]",
        "{{ '%5d|%s' % (3, 'x') }}{{ '{:>4}{}'.format(1, 'y') }}": "    3|x   1y",
        "{{ 'aaa bbb' | wordwrap(3) }}{{ 'a\nb' | indent(2) }}": "aaa\nbbba\n  b",
    }.items():
        assert ChatTemplate(source).render(USER) == text


def test_a_template_that_calls_itself_without_end_is_refused() -> None:
    source = "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}"
    with pytest.raises(TemplateError, match="recursion"):
        ChatTemplate(source).render(USER)
