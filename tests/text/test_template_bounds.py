"""Bounds of chat templates: time, memory and depth end a rendering with an error, and change nothing else."""

from __future__ import annotations

import tracemalloc
from functools import partial

import pytest

from plumbline.text.templates.bounds import Steps
from plumbline.text.templates.template import ChatTemplate, TemplateError


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}"
        "{% endfor %}",
        "{% for a in range(99999) if range(9999) | sum < 0 %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_an_endless_template_ends(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.text.templates.template.Steps", partial(Steps, 0.05))
    with pytest.raises(TemplateError, match="CPU time"):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


GROWING = {
    "times": "{{ 'x' * 1000000000 }}",
    "times, from the left": "{{ 1000000000 * 'x' }}",
    "times, of a list": "{{ [1] * 1000000000 }}",
    "a width of JSON": "{{ [1] | tojson(indent=1000000000) }}",
    "a format, of an object": "{{ ('%(a)s' * 1000) % {'a': 'x' * 1000000} }}",
    "a format, of a list": "{{ ('{0[0]}' * 1000).format(['x' * 1000000]) }}",
    "a join of attributes": "{{ ([{'a': 'x' * 1000000}] * 1000) | join(attribute='a') }}",
    "a constant": "{% set x = ('x' * 1000) * 1000000 %}",
    "a power": "{{ 2 ** 10000000000 }}",
    "powers of powers": "{% set ns = namespace(n=3) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "joins": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "sums": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "sums of lists": "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "a width": "{{ '%1000000000d' % 1 }}",
    "a width among the values": "{{ '%*d' % (1000000000, 1) }}",
    "a format": "{{ '{:>1000000000}'.format(1) }}",
    "a format with a width among the values": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "the filter of formats": "{{ '%1000000000d'|format(1) }}",
    "padding": "{{ 'x'.center(1000000000) }}",
    "padding by a filter": "{{ 'x'|center(1000000000) }}",
    "tabs": "{{ '\t\t'.expandtabs(1000000000) }}",
    "indentation": "{{ 'x'|indent(1000000000, true) }}",
    "slices": "{{ [1]|slice(1000000000)|list }}",
    "batches": "{{ [1]|batch(1000000000, 0)|list }}",
    "replacements": "{% set a = 'x' * 60000 %}{{ a.replace('x', a) }}",
    "replacements by a filter": "{% set a = 'x' * 60000 %}{{ a|replace('x', a) }}",
    "a list that is joined": "{% set a = 'x' * 60000 %}{{ ([a] * 60000)|join }}",
    "a list that a method joins": "{% set a = 'x' * 60000 %}{{ ''.join([a] * 60000) }}",
    "what it writes": "{% set a = 'x' * 60000 %}{% for i in range(60000) %}{{ a }}{% endfor %}",
}


@pytest.mark.parametrize("source", GROWING.values(), ids=GROWING)
def test_a_template_makes_no_value_of_gigabytes(source: str) -> None:
    """Neither when it is compiled, where constants are computed, nor when it runs."""
    tracemalloc.start()
    with pytest.raises(TemplateError, match=r"it (makes a (value|number) of|indents JSON by) more than"):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 300 << 20


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'ab' ~ 1 ~ none ~ ['c'] }}", "ab1None['c']"),
        ("{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ [1] + [2] }}", "ababab1024[1, 2]"),
        ("{{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }}{{ [1] | tojson(indent=1) }}", "1-2[\n 1\n]"),
        ("{{ '%5d|%s' % (3, 'x') }}{{ '%s-%s'|format('a', 'b') }}", "    3|xa-b"),
        ("{{ '{:>4}{}'.format(1, 'y') }}{{ 'a'.center(5) }}{{ 'a'|center(3) }}", "   1y  a   a "),
        (
            "{{ 'a,b'.split(',')|join('-') }}{{ ', '.join(['p', 'q']) }}{{ 'aXa'|replace('X', 'yy') }}",
            "a-bp, qayya",
        ),
        ("{{ [{'n': 'u'}, {'n': 'v'}]|join('+', attribute='n') }}{{ 'a\nb'|indent(2) }}", "u+va\n  b"),
        ("{{ [1, 2, 3]|batch(2)|list }}{{ 'xyx'.replace('x', 'z', 1) }}", "[[1, 2], [3]]zyx"),
    ],
)
def test_operations_with_checks_give_what_they_gave(source: str, text: str) -> None:
    assert ChatTemplate(source).render([{"role": "user", "content": "x"}]) == text


def test_a_template_that_calls_itself_without_end_is_refused() -> None:
    source = "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}"
    with pytest.raises(TemplateError, match="recursion"):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_a_template_cannot_replace_what_counts_its_steps() -> None:
    for binding in (
        "set __step__ = 1",
        "set __join__ = 1",
        "macro __step__() %}{% endmacro",
        "for __step__ in [1] %}{% endfor",
    ):
        with pytest.raises(TemplateError, match="reserved"):
            ChatTemplate(f"{{% {binding} %}}")
