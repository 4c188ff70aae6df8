# ruff: noqa: E501 - a table reads best with one case a line
"""Laws of grammars in the engine: what is drawn is allowed, whatever else is in the step and whatever happens to it."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.base.workers.pool import Bounds
from plumbline.engines.constraints.grammar import (
    CompilersBusyError,
    GrammarError,
    GrammarVocabulary,
    LarkCompiler,
    Matcher,
    num_words,
)
from plumbline.engines.constraints.lark import compile_lark, lark_tokenizer
from plumbline.engines.constraints.thinking_budget import ThinkingBudgetMatcher
from plumbline.port.engine import ThinkingBudget

from .conftest import COMPILER, ENDS, EOS, TOKENS, VOCAB, VOCABULARY, Driver, encode, matcher


def text_of(token_ids: list[int]) -> str:
    return b"".join(TOKENS[token] for token in token_ids if token not in ENDS).decode()


def allowed(found: Matcher) -> set[int]:
    row = np.zeros(num_words(VOCAB), dtype=np.int32)
    found.mask_into(row)
    return {token for token in range(VOCAB) if row.view(np.uint32)[token // 32] >> (token % 32) & 1}


def test_a_long_forced_text_is_encoded_once_for_all_choices() -> None:
    """Not again after each of its tokens, which took 4 ms for each of 4,000 digits; the tokens are those of the text."""
    lengths: list[int] = []

    def counted(text: str) -> list[int]:
        lengths.append(len(text))
        return encode(text)

    tokenizer = lark_tokenizer(
        GrammarVocabulary(TOKENS, VOCABULARY.special_ids, VOCABULARY.eos_token_ids, counted)
    )
    wanted = "abcdef" * 150
    compiled = compile_lark(tokenizer, f'start: "{wanted}"', is_small=True)
    lengths.clear()
    for _ in range(3):
        found, text = compiled.matcher(), b""
        while len(text) < 300:
            token = max(allowed(found))
            assert found.accept(token)
            text += TOKENS[token]
        assert wanted.encode().startswith(text)
    assert sum(length >= 256 for length in lengths) <= 3, lengths


WORDS = "start: /[a-f]{2,12}/"
PAIRS = 'start: pair{1,4}\npair: "(" /[0-9]{1,3}/ "," ("yes" | "no") ")"'


@settings(max_examples=EXPLORED or 5)
@given(st.lists(st.integers(0, 2**16), min_size=1, max_size=10), st.sampled_from([WORDS, PAIRS]))
def test_a_mask_allows_exactly_what_is_accepted(picks: list[int], grammar: str) -> None:
    """The two halves of a matcher agree at every state of a random walk, a copy is in the same state and leaves it
    alone, and a rollback takes a token back."""
    found = matcher(grammar)
    for pick in picks:
        may = allowed(found)
        for token in range(1, VOCAB):
            probe = found.copy()
            assert probe.accept(token) == (token in may)
            if token in may:
                probe.rollback(1)
                assert allowed(probe) == may
        token = sorted(may)[pick % len(may)]
        assert allowed(found) == may
        assert found.accept(token)
        if found.is_done:
            return


def test_every_end_is_allowed_where_the_grammar_can_end() -> None:
    compiler = LarkCompiler(GrammarVocabulary(TOKENS, ENDS, ENDS, encode))
    found = asyncio.run(compiler.compile(WORDS))
    assert not allowed(found) & ENDS
    for token in encode("ab"):
        assert found.accept(token)
    assert allowed(found) >= ENDS
    for token in encode("cdefabcdef"):
        assert found.accept(token)
    assert found.is_done


@pytest.mark.parametrize(
    "grammar",
    ["", "start: a", "start: a\na: a", "start: /(/", "start: /(?=a)a/", 'start: "€"', "x: /a/", 'start: %json {"not": {}}', "{", "start: " + "(" * 5000],
)  # fmt: skip
def test_an_unsupported_grammar_is_an_error_with_a_text(grammar: str) -> None:
    with pytest.raises(GrammarError) as caught:
        matcher(grammar)
    assert 5 < len(str(caught.value)) < 400


def test_a_pattern_that_the_engine_fails_on_is_refused() -> None:
    """llguidance 1.9 panics on this pattern; whatever it panics on, a client sees a sentence and others are served."""
    with pytest.raises(GrammarError, match=r"^It could not be compiled\.$"):
        matcher(r"start: /\w|(\w|é)/")
    assert matcher("start: /a/").is_done is False


def test_a_broken_tokenizer_does_not_show_its_inside() -> None:
    """llguidance hands the failure of a callback on with its traceback, paths and all."""
    compiler = LarkCompiler(GrammarVocabulary(TOKENS, ENDS, ENDS, lambda text: [][1]))
    with pytest.raises(GrammarError) as caught:
        asyncio.run(compiler.compile('start: "abc"'))
    assert ".py" not in str(caught.value)


def test_equal_grammars_are_compiled_once_and_matchers_are_not_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = LarkCompiler(VOCABULARY, capacity=2)
    compiled: list[str] = []
    inner = compiler._try_and_compile
    monkeypatch.setattr(
        compiler,
        "_try_and_compile",
        lambda text, *more: (compiled.append(text), inner(text, *more))[1],  # type: ignore[func-returns-value]
    )

    async def scenario() -> None:
        many = await asyncio.gather(*(compiler.compile(WORDS) for _ in range(20)))
        assert compiled == [WORDS]
        assert many[0].accept(encode("a")[0])
        assert not allowed(many[1]) & ENDS
        bad = await asyncio.gather(*(compiler.compile("start: x") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(error, GrammarError) for error in bad)
        assert compiled == [WORDS, "start: x"]
        await compiler.compile(PAIRS)
        await compiler.compile(WORDS)  # Two are kept, and this one was the oldest.
        assert compiled == [WORDS, "start: x", PAIRS, WORDS]
        await compiler.close()

    asyncio.run(scenario())


# What a grammar may do to the process that compiles it

SLOW = 'start: %json {"type": "integer", "multipleOf": 2147483648}'
"""It compiles for minutes, and takes gigabytes."""
FEW = Bounds(cpu_seconds=0.5, seconds=10.0, memory=1024**3, result=4096)
LITTLE = Bounds(cpu_seconds=20.0, seconds=60.0, memory=180 * 1024**2, result=4096)


@pytest.fixture
def few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.engines.constraints.grammar.BOUNDS", FEW)


@pytest.mark.parametrize(
    ("grammar", "bounds", "reason"),
    [
        ('start: %json {"const": -9223372036854775807}', FEW, "failed"),
        (SLOW, FEW, "more than 0.5 s"),
        (SLOW, LITTLE, "too much memory"),
    ],
)
def test_a_deadly_grammar_is_refused_once_and_others_are_served(
    grammar: str, bounds: Bounds, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends, and the server's does not; the refusal is kept."""
    monkeypatch.setattr("plumbline.engines.constraints.grammar.BOUNDS", bounds)
    compiler = LarkCompiler(VOCABULARY)

    async def scenario() -> None:
        for _ in range(2):
            with pytest.raises(GrammarError, match=reason):
                await compiler.compile(grammar)
            assert not (await compiler.compile(WORDS)).is_done
        await compiler.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("few_seconds")
def test_slow_grammars_of_a_client_do_not_keep_others_waiting() -> None:
    """However many a client sends, another one's is compiled while they are tried; beyond the queue they are refused."""
    compiler = LarkCompiler(VOCABULARY, waiting=4)

    async def scenario() -> None:
        slow = [asyncio.create_task(compiler.compile(f"{SLOW}\n// {n}", "a")) for n in range(3)]
        await asyncio.sleep(0)
        await compiler.compile(WORDS, "b")
        assert not any(task.done() for task in slow)
        with pytest.raises(CompilersBusyError, match="Too many"):
            await compiler.compile(f"{SLOW}\n// beyond", "a")
        await compiler.compile(PAIRS, "b")
        again = asyncio.create_task(compiler.compile(f"{SLOW}\n// 0", "b"))  # The same takes no place.
        found = await asyncio.gather(*slow, again, return_exceptions=True)
        assert all(isinstance(error, GrammarError) for error in found), found
        await compiler.close()

    asyncio.run(scenario())


def test_a_grammar_that_gets_no_turn_in_time_is_not_called_one_of_many() -> None:
    compiler = LarkCompiler(VOCABULARY, patience=0.0)

    async def scenario() -> None:
        with pytest.raises(CompilersBusyError, match="within 0 seconds"):
            await compiler.compile(WORDS, "a")
        await compiler.close()

    asyncio.run(scenario())


def test_what_nobody_waits_for_any_more_is_not_compiled() -> None:
    """Clients that go away leave no work behind for others to wait for."""
    compiler = LarkCompiler(VOCABULARY)

    async def scenario() -> None:
        waiting = [asyncio.create_task(compiler.compile(f"{SLOW}\n// {n}", "a")) for n in range(8)]
        await compiler.compile(WORDS, "b")
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(3):  # The slow ones would take four seconds each.
            await compiler.compile(PAIRS, "a")
        assert len(compiler._compiled) == 2
        await compiler.close()

    asyncio.run(scenario())


def test_large_grammars_leave_the_cache_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.engines.constraints.grammar._MOST_CACHED", 1)
    compiler = LarkCompiler(VOCABULARY)

    async def scenario() -> None:
        large = [f"start: /(a|b)*a(a|b){{11}}[c-{last}]/" for last in "defg"]
        for grammar in large:
            await compiler.compile(grammar)
        assert len(compiler._compiled) == 1
        await compiler.close()

    asyncio.run(scenario())


def test_every_client_gets_a_new_exception_of_a_cached_failure() -> None:
    """An exception that is raised again and again would grow with each of its tracebacks."""

    async def scenario() -> None:
        found = [
            error
            for _ in range(3)
            for error in await asyncio.gather(COMPILER.compile("start: nothing"), return_exceptions=True)
        ]
        assert len({id(error) for error in found}) == len({str(error) for error in found}) * 3
        assert all(isinstance(error, GrammarError) for error in found)

    asyncio.run(scenario())


# In the engine


def add(driver: Driver, name: str, grammar: str | None, prompt: list[int], **sampling: Any) -> None:
    """Queue a request that draws at temperature 1, keyed by its name."""
    values = {"temperature": 1.0, "seed": sum(name.encode()), "max_tokens": 60, **sampling}
    found = None if grammar is None else matcher(grammar)
    driver.add(name, prompt, matcher=found, **values)


def alone(engine: Callable[..., Driver], name: str, grammar: str | None, prompt: list[int]) -> list[int]:
    driver = engine()
    add(driver, name, grammar, prompt)
    driver.run()
    return driver.tokens[name]


def test_what_is_drawn_is_in_the_grammar(engine: Callable[..., Driver]) -> None:
    driver = engine()
    for index in range(12):
        add(driver, f"w{index}", WORDS, [3 + index])
        add(driver, f"p{index}", PAIRS, [3 + index])
    driver.run()
    for name, tokens in driver.tokens.items():
        pattern = r"[a-f]{2,12}" if name[0] == "w" else r"(\([0-9]{1,3},(yes|no)\)){1,4}"
        assert re.fullmatch(pattern, text_of(tokens)), text_of(tokens)
        assert driver.finished[name] == "stop"


@pytest.mark.parametrize(
    "sampling", [{"min_tokens": 50}, {"ignore_eos": True}, {"min_tokens": 50, "ignore_eos": True}]
)
def test_the_grammar_is_stronger_than_what_puts_the_end_off(
    engine: Callable[..., Driver], sampling: dict[str, Any]
) -> None:
    """Either makes a text as long as its grammar can be, never longer; nothing hangs."""
    driver = engine()
    add(driver, "short", 'start: "yes" | "no"', [5], **sampling)
    add(driver, "long", WORDS, [6], **sampling)
    driver.run()
    assert text_of(driver.tokens["short"]) in ("yes", "no")
    assert driver.finished == {"short": "stop", "long": "stop"}
    assert len(text_of(driver.tokens["long"])) == 12


def test_a_bound_that_is_not_reached_changes_nothing_of_an_ignored_end(engine: Callable[..., Driver]) -> None:
    limit = ThinkingBudget(max_tokens=30, begin=((7,),), end=(8,))
    wanted = {
        "max_tokens": 8,
        "ignore_eos": True,
        "logit_bias": dict.fromkeys(EOS, 100.0),
        "temperature": 0.0,
    }
    driver = engine()
    driver.add("free", [5], **wanted)  # type: ignore[arg-type]
    driver.add("bound", [5], matcher=ThinkingBudgetMatcher(limit), thinking_budget=limit, **wanted)
    driver.run()
    assert driver.tokens["bound"] == driver.tokens["free"] == [*EOS] * 8


def test_an_answer_complete_at_the_limit_finishes_with_stop(engine: Callable[..., Driver]) -> None:
    driver = engine()
    add(driver, "fits", 'start: "abc"', [5], max_tokens=3)
    add(driver, "cut", 'start: "abcd"', [5], max_tokens=3)
    driver.run()
    assert driver.finished == {"fits": "stop", "cut": "length"}


class Failing:
    """A matcher that gives up at its third token."""

    def __init__(self, at: str) -> None:
        self.at, self.count = at, 0
        self.is_done = self.may_be_slow = False

    def prepare(self) -> None:
        pass

    def mask_into(self, row: Any) -> None:
        if self.at == "mask" and self.count == 2:
            raise GrammarError("Too complex.")
        row.fill(0 if self.at == "empty" and self.count == 2 else -1)

    def accept(self, token_id: int) -> bool:
        self.count += 1
        return not (self.at == "accept" and self.count == 3)

    def rollback(self, num_tokens: int) -> None:
        self.count -= num_tokens

    def copy(self) -> Failing:
        return copy(self)


@pytest.mark.parametrize("at", ["mask", "empty", "accept"])
def test_a_grammar_that_fails_midway_fails_only_its_request(engine: Callable[..., Driver], at: str) -> None:
    """It ends with `error`, never with `stop`, and other requests go on."""
    driver = engine()
    driver.add("bad", [5], temperature=1.0, seed=1, max_tokens=40, ignore_eos=True, matcher=Failing(at))
    add(driver, "good", PAIRS, [6])
    driver.run()
    assert driver.finished == {"bad": "error", "good": "stop"}
    assert len(driver.tokens["bad"]) == 2
    assert driver.tokens["good"] == alone(engine, "good", PAIRS, [6])


def test_a_late_mask_holds_up_no_other_request(engine: Callable[..., Driver]) -> None:
    """However long it takes: the request sits out, and goes on as if nothing had happened."""
    known = threading.Event()

    class Late(Failing):
        def __init__(self) -> None:
            super().__init__("never")
            self.may_be_slow = True

        def prepare(self) -> None:
            if self.count == 2:
                known.wait()

    driver = engine()
    wanted: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 9, "ignore_eos": True}
    driver.add("late", [5], matcher=Late(), **wanted)
    add(driver, "good", PAIRS, [6])
    try:
        for _ in range(200):
            if "good" not in driver.finished:
                driver.step()
        assert driver.finished == {"good": "stop"}
        assert len(driver.tokens["late"]) <= 2
        assert driver.tokens["good"] == alone(engine, "good", PAIRS, [6])
    finally:
        known.set()  # A thread that waits on would keep the tests from ending.
    driver.run()
    other = engine()
    other.add("late", [5], matcher=Failing("never"), **wanted)
    other.run()
    assert driver.tokens["late"] == other.tokens["late"]
    assert driver.finished["late"] == "length"


EXPENSIVE = 'start: e "!"\ne: e e e | e e | "a"'
"""The work for a token grows with the square of the text."""


def test_an_answer_has_a_budget_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.engines.constraints.lark._MOST_SECONDS", 0.02)
    found = matcher(EXPENSIVE)
    with pytest.raises(GrammarError, match="CPU time for one answer"):  # noqa: PT012 - any of them may raise it
        for _ in range(400):
            assert ord("a") in {TOKENS[token][0] for token in allowed(found) if TOKENS[token]}
            assert found.accept(encode("a")[0])
            assert found.copy().may_be_slow in (True, False)
    assert not allowed(matcher(EXPENSIVE)) & ENDS  # Another answer has a budget of its own.


def test_a_slow_matcher_says_so_and_a_prepared_mask_is_the_same() -> None:
    found: Any = matcher(EXPENSIVE)
    assert not found.may_be_slow
    for _ in range(150):
        allowed(found)
        assert found.accept(encode("a")[0])
    assert found.may_be_slow
    expected = allowed(found.copy())
    found.prepare()
    assert found.may_be_slow, "proposals would advance it in a step"
    assert allowed(found) == expected


def test_logprobs_are_those_of_before_the_mask(engine: Callable[..., Driver]) -> None:
    plain, held = engine(), engine()
    add(plain, "a", None, [5, 6], logprobs=VOCAB, max_tokens=1)
    add(held, "a", 'start: "z"', [5, 6], logprobs=VOCAB, max_tokens=1)
    plain.run()
    held.run()
    (free,), (bound,) = plain.logprobs["a"], held.logprobs["a"]
    assert free.top == bound.top
    assert bound.token_id == encode("z")[0]
    assert bound.logprob == dict(free.top)[bound.token_id]
