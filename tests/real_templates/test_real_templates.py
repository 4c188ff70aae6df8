"""The report on real templates: it passes a faithful template, and fails one that is not read as it writes.

Laws: the turn of the assistant is cut out whole, whatever it says and whether or not its opening is in the prompt; an
exception allows its difference and no other, and one that allows nothing is reported; the documentation lists the
exceptions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import CHATML

from plumbline.answer.dialects.registry import choose
from real_templates.__main__ import main
from real_templates.exceptions import EVERY_CALL, EXCEPTIONS, Exemption, unexplained, unused
from real_templates.probes import PROBES, QUESTION, RESULTS
from real_templates.report import Report
from real_templates.round_trip import examine
from real_templates.turns import assistant_turn

_DOCS = (
    (Path(__file__).parents[2] / "docs" / "explanation" / "chat-templates.md").read_text("utf-8").splitlines()
)
_PYTHON = CHATML.replace(
    "call.function.arguments | tojson", "call.function.arguments.items() | list | string"
)
_PYTHON = _PYTHON.replace("call.function.arguments if call.function.arguments is string else ", "")
_FIRST_ONLY = CHATML.replace("in message.tool_calls or []", "in (message.tool_calls or [])[:1]")
_OTHER_MARKERS = CHATML.replace("tool_call>", "aufruf>")
_ENDLESS = CHATML.replace("'</think>'", "'</thought>'")
_LOST = CHATML.replace("{{- message.content }}", "{{- '' if message.role == 'tool' else message.content }}")


def _differing(source: str) -> set[str]:
    return {difference.probe for difference in examine("ours", source).differences}


def test_a_template_that_is_read_as_it_writes_has_no_differences() -> None:
    report = examine("ours", CHATML)
    assert (report.tool, report.reasoning, report.has_tools) == ("hermes", "think", True)
    assert report.differences == ()
    assert report.passed >= len(PROBES)


@pytest.mark.parametrize(
    ("source", "probes"),
    [
        (_FIRST_ONLY, {"two calls", "two calls after text"}),
        (_OTHER_MARKERS, {"detection"}),
        (_LOST, {"result", "result in JSON", "two results", "text after a result"}),
    ],
)
def test_a_difference_is_found_where_it_is_and_nowhere_else(source: str, probes: set[str]) -> None:
    assert _differing(source) == probes


def test_values_that_change_are_differences() -> None:
    """These arguments are no JSON, so every call that has some differs, and text does not."""
    assert _differing(_PYTHON) == {probe.name for probe in PROBES if probe.calls} - {"no arguments"}


def test_thinking_that_leaks_is_a_difference() -> None:
    assert "text after thinking" in _differing(_ENDLESS)


_TEXT = st.text(st.characters(exclude_characters="<>[]\r", exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text.strip() == text and QUESTION not in text
)


_HEADERS = st.sampled_from(["<|assistant|>\n", "[/INST]", "A: "])
_AFTER = st.sampled_from(["", "<|system|>Answer in JSON.<|end|>"])
"""What some templates write behind every conversation."""


@given(said=_TEXT, header=_HEADERS, after=_AFTER, thinks=st.booleans(), opens=st.booleans())
def test_the_turn_is_cut_out_whole(said: str, header: str, after: str, thinks: bool, opens: bool) -> None:
    unopened = f"<s>{QUESTION}<|end|>{after}"
    prompt = unopened + header + ("<think>\n" if thinks else "")
    whole = f"<s>{QUESTION}<|end|>{header}{said}<|end|>\n{after}"
    if opens:  # The template writes the opening of another turn even if it is not asked to.
        unopened, whole = prompt, whole + prompt.removeprefix(unopened)
    turn = assistant_turn(unopened, prompt, whole, choose(CHATML), question=QUESTION)
    assert turn.text.endswith(said)
    if not (after and (thinks or opens)):
        assert turn == (said, "before")


def _report() -> Report:
    return examine("ours-1.jinja", _FIRST_ONLY)


def test_an_exception_allows_its_differences_and_no_others() -> None:
    report = _report()
    one = Exemption("ours-*", ("two calls",), "it writes the first call only")
    assert [each.probe for each in unexplained(report, [one])] == ["two calls after text"]
    assert unexplained(report, [Exemption("ours-*", (EVERY_CALL,), "")]) == []
    assert len(unexplained(report, [Exemption("other*", (EVERY_CALL,), "")])) == 2


def test_an_exception_may_name_the_folder_of_its_template() -> None:
    report = examine("theirs/ours-1.jinja", _FIRST_ONLY)
    for pattern, left in (("theirs/ours-*", 0), ("ours-*", 0), ("others/ours-*", 2), ("theirs", 2)):
        assert len(unexplained(report, [Exemption(pattern, (EVERY_CALL,), "")])) == left


def test_an_exception_that_allows_nothing_is_reported() -> None:
    partly = Exemption("ours-*", ("two calls", "null"), "")
    idle = Exemption("ours-*", ("text",), "")
    absent = Exemption("not here*", ("null",), "")
    found = unused([_report()], [partly, idle, absent, Exemption("ours-*", (EVERY_CALL,), "")])
    assert found == [Exemption("ours-*", ("null",), ""), idle]


@pytest.mark.parametrize(("source", "code"), [(CHATML, 0), (_FIRST_ONLY, 1)])
def test_the_session_fails_where_a_template_differs(
    source: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ours.jinja").write_text(source, "utf-8")
    assert main([str(tmp_path)]) == code
    assert ("DIFFERS two calls" in capsys.readouterr().out) == bool(code)


def test_a_folder_without_templates_fails(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1


def test_the_documentation_lists_the_exceptions() -> None:
    """In their order, each with its reason."""
    start = _DOCS.index("### Templates that are not read as they write")
    rows = [line for line in _DOCS[start:] if line.startswith("| `")]
    assert rows == [
        f"| `{each.template}` | {', '.join(each.probes)} | {each.reason} |" for each in EXCEPTIONS
    ]


def test_exceptions_name_probes_and_say_why() -> None:
    names = {EVERY_CALL, "detection", "thinking", "switch"} | {probe.name for probe in (*PROBES, *RESULTS)}
    assert {probe for each in EXCEPTIONS for probe in each.probes} <= names
    assert all(each.reason.endswith(".") for each in EXCEPTIONS)
