"""Laws of the answer reader, which has no I/O: chunks of tokens go in, events come out.

* However the engine cuts an answer into chunks, its events add up to the same message and the same finish.
* Without a dialect the message is the text of the tokens.
* Every token up to the end is counted, and the tokens of the thinking are among them.
* The finish reason is `length` where the token limit ended the answer, `tool_calls` where all of its calls are whole,
  else `stop`.
* The events of a continued message come with the first chunk, and only once.
* A failure of the engine is raised as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.laws import EXAMPLES
from support.models import EOS, TOKENIZER
from support.parsing.dialects import Folded, fold

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.kinds.plain import PLAIN
from plumbline.answer.dialects.model_dialect import ModelDialect
from plumbline.answer.dialects.registry import choose
from plumbline.answer.events import Finish, OutputEvent, TextDelta
from plumbline.answer.road.answer_reader import AnswerReader
from plumbline.answer.road.errors import AbortedError, ConstraintFailedError, GenerationError
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.answer.structured_output.constraints import Constraint
from plumbline.answer.turn import ChatPrompt, Message, TextPrompt, Tool, ToolChoice, Turn
from plumbline.port.engine import SamplingParams, TokenChunk

HERMES = build_dialect(choose("", tool="hermes", reasoning="qwen3"), TOKENIZER)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
CUSTOM_CALL = '<tool_call>\n{"name": "patch", "arguments": {"input": "x\\ny"}}\n</tool_call>'
PROMPT = (5, 6, 7)

laws = settings(max_examples=EXAMPLES // 5)
outputs = st.tuples(
    st.sampled_from(("", "<think>\nSo.\n</think>\n\n", "<think>Hm")),
    st.lists(
        st.sampled_from((CALL, CUSTOM_CALL, CALL[:30], "words ", "é🎉", "STOP", "<tool_call>", "\n")),
        max_size=4,
    ).map("".join),
).map("".join)
endings = st.sampled_from(("eos", "length", "stop token"))
cuttings = st.lists(st.integers(0, 5), min_size=1, max_size=6)


class Answer:
    """An answer that an engine gives in chunks."""

    def __init__(self, text: str, ending: str, dialect: ModelDialect = HERMES, **changes: object) -> None:
        tools = (Tool(name="f"), Tool(name="patch", custom=True))
        fields: dict[str, object] = {
            "prompt": ChatPrompt(messages=(Message(role="user", content="hi"),), tools=tools),
            "sampling": SamplingParams(
                stop_token_ids=frozenset({0}) if ending == "stop token" else frozenset()
            ),
            "tool_choice": ToolChoice(mode="auto"),
        }
        turn = Turn(**{**fields, **changes})  # type: ignore[arg-type]
        self.prepared = PreparedTurn(turn, PROMPT, Constraint(), dialect, dialect.frame(PROMPT))
        last = {"eos": [EOS], "length": [], "stop token": [0]}[ending]
        self.token_ids = (*TOKENIZER.encode_rendered(text), *last)
        self.reason = "length" if ending == "length" else "stop"

    def chunks(self, sizes: Sequence[int]) -> list[TokenChunk]:
        """The tokens in chunks of these sizes, over and over. A stop token comes with the reason."""
        places = [0]
        most = len(self.token_ids) - (self.token_ids[-1:] == (0,))
        for number in range(len(self.token_ids) * len(sizes)):
            places.append(min(most, places[-1] + sizes[number % len(sizes)]))
        places.append(len(self.token_ids))
        found = [TokenChunk(token_ids=self.token_ids[start:end]) for start, end in pairwise(places)]
        return [*found[:-1], TokenChunk(token_ids=found[-1].token_ids, finish_reason=self.reason)]  # type: ignore[arg-type]

    def read(self, sizes: Sequence[int]) -> tuple[Folded, Finish]:
        """The message and the finish."""
        *events, last = self.events(self.chunks(sizes))
        assert isinstance(last, Finish)
        return fold(events), last

    def events(self, chunks: Sequence[TokenChunk]) -> list[OutputEvent]:
        """All events, read as the road reads them."""
        reader = AnswerReader(self.prepared, TOKENIZER, frozenset({EOS}))
        found: list[OutputEvent] = []
        for chunk in chunks:
            found += reader.push(chunk)
            if reader.is_done:
                break
        return [*found, *reader.finish()]


@laws
@given(text=outputs, ending=endings, stop=st.sampled_from([(), ("STOP",), ("words", "b")]), sizes=cuttings)
def test_chunks_do_not_change_an_answer(
    text: str, ending: str, stop: tuple[str, ...], sizes: list[int]
) -> None:
    answer = Answer(text, ending, stop=stop)
    assert answer.read(sizes) == answer.read([1])


@laws
@given(text=outputs, ending=st.sampled_from(("eos", "length")), sizes=cuttings)
def test_without_a_dialect_all_is_text(text: str, ending: str, sizes: list[int]) -> None:
    answer = Answer(text, ending, PLAIN, prompt=TextPrompt("x"), skip_special_tokens=False)
    message, finish = answer.read(sizes)
    assert (message.content, message.reasoning, message.calls) == (text, "", [])
    assert finish.reason == answer.reason


@laws
@given(text=outputs, ending=endings, sizes=cuttings)
def test_every_token_is_counted(text: str, ending: str, sizes: list[int]) -> None:
    answer = Answer(text, ending)
    _, finish = answer.read(sizes)
    assert finish.usage.prompt_tokens == len(PROMPT)
    assert finish.usage.completion_tokens == len(answer.token_ids)
    assert finish.usage.reasoning_tokens <= len(answer.token_ids)
    assert bool(finish.usage.reasoning_tokens) == text.startswith("<think>")


@laws
@given(text=outputs, ending=endings, sizes=cuttings)
def test_the_reason_follows_from_the_end_and_the_calls(text: str, ending: str, sizes: list[int]) -> None:
    """CHAT-05."""
    message, finish = Answer(text, ending).read(sizes)
    if ending == "length":
        assert finish.reason == "length"
    elif message.calls and all(call.complete for call in message.calls):
        assert finish.reason == "tool_calls"
    else:
        assert finish.reason == "stop"
    assert finish.stop_match == (0 if ending == "stop token" else None)


@laws
@given(before=outputs, after=outputs, sizes=cuttings)
@example(before="<think>\nSTOP\n</think>\n\n4", after="", sizes=[5])
@example(before="<think>ST</think>", after="", sizes=[1])
@example(before='<tool_call>\n{"name": "f", "arg', after="", sizes=[1])
def test_a_stop_string_ends_the_answer_and_no_thinking(before: str, after: str, sizes: list[int]) -> None:
    """CHAT-23; and CS-15: the tokens behind it are neither read nor counted."""
    whole = f"{before}STOP{after}"
    free, free_finish = Answer(whole, "eos").read([1])
    message, finish = Answer(whole, "eos", stop=("STOP",)).read(sizes)
    if finish.stop_match is None:
        assert "STOP" not in free.content
        assert (message, finish) == (free, free_finish)
        return
    assert finish.stop_match == "STOP"
    assert finish.reason != "length"
    assert message.reasoning == free.reasoning[: len(message.reasoning)]
    assert "STOP" not in message.content
    assert free.content.startswith(message.content.rstrip())
    least = min(at for at in range(len(whole)) if whole.startswith("STOP", at)) + len("STOP")
    ends = [at + 4 for at in range(least - 4, len(whole)) if whole.startswith("STOP", at)]
    counts = [len(TOKENIZER.encode_rendered(whole[:end])) for end in ends]
    # What may still be a call is text only at the end of the output, so all tokens until then have been read.
    assert finish.usage.completion_tokens in (*counts, free_finish.usage.completion_tokens)
    if "STOP" in free.content and not any("STOP" in call.arguments for call in free.calls):
        assert message.content.rstrip() == free.content.partition("STOP")[0].rstrip()
    if "STOP" in free.content:
        kept = Answer(whole, "eos", stop=("STOP",), include_stop=True).read(sizes)[0]
        assert kept.content.endswith("STOP") or kept.calls


@laws
@given(text=outputs, stop=st.sampled_from(("\n", "\n\n", "think", "</think>", "Hm", "So", "<")))
def test_no_stop_string_takes_the_answer_away(text: str, stop: str) -> None:
    """CHAT-23: neither thinking nor the markup and white space after it are searched."""
    thought = "<think>\nSo.\n\nHm < 3\n</think>\n\n"
    message, _ = Answer(f"{thought}4{text.replace('<think>', '')}", "eos", stop=(stop,)).read([1])
    assert message.content[:1] == "4"
    assert message.reasoning == "So.\n\nHm < 3"


@laws
@given(begun=outputs, text=outputs, echo=st.booleans(), sizes=cuttings)
def test_a_continued_message_comes_with_the_first_chunk(
    begun: str, text: str, echo: bool, sizes: list[int]
) -> None:
    messages = (Message(role="user", content="hi"), Message(role="assistant", content=begun))
    prompt = ChatPrompt(messages=messages, tools=(Tool(name="f"),), continue_final_message=True)
    answer = Answer(text, "eos", prompt=prompt, echo=echo)
    reader = AnswerReader(answer.prepared, TOKENIZER, frozenset({EOS}))
    first = list(reader.push(TokenChunk()))
    again = list(reader.push(TokenChunk()))
    assert not again
    assert echo or not any(isinstance(event, TextDelta) for event in first)
    rest = [event for chunk in answer.chunks(sizes) for event in reader.push(chunk)]
    events = answer.events(answer.chunks([1]))
    assert fold([*first, *rest, *reader.finish()][:-1]) == fold(events[:-1])


@laws
@given(
    begun=st.sampled_from(
        ("Well, ", "<think>\nHm", "<think>\nSo.\n</think>\n\nIt ", CALL[:30], f"{CALL}\n", CALL[:48])
    ),
    text=outputs,
    sizes=cuttings,
)
@example(begun="<think>\nHm", text=" STOP.\n</think>\n\n4 STOP", sizes=[1])
def test_a_stop_string_ends_a_continued_message_where_it_would_end_the_whole(
    begun: str, text: str, sizes: list[int]
) -> None:
    """CHAT-23: thinking, markup or a call may have begun in the message that the answer continues."""
    messages = (Message(role="user", content="hi"), Message(role="assistant", content=begun))
    prompt = ChatPrompt(messages=messages, tools=(Tool(name="f"),), continue_final_message=True)
    continued = Answer(text, "eos", prompt=prompt, stop=("STOP",), echo=True)
    whole = Answer(
        begun + text, "eos", stop=("STOP",), prompt=msgspec.structs.replace(prompt, messages=messages[:1])
    )
    (message, finish), (wanted, end) = continued.read(sizes), whole.read([1])
    assert message == wanted
    assert (finish.reason, finish.stop_match) == (end.reason, end.stop_match)


def test_nothing_is_generated_where_no_token_is_wanted() -> None:
    """ERR-09: `max_tokens` 0 asks for the prompt alone."""
    (finish,) = Answer("", "length", sampling=SamplingParams(max_tokens=0)).events([])
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.usage.completion_tokens) == ("length", 0)


def test_cached_tokens_are_those_of_the_chunk_that_names_most() -> None:
    chunks = [TokenChunk(num_cached_tokens=number) for number in (0, 3, 0)]
    *_, finish = Answer("", "eos").events(chunks)
    assert isinstance(finish, Finish)
    assert finish.usage.cached_tokens == 3


@pytest.mark.parametrize(
    ("chunk", "error"),
    [
        (TokenChunk(finish_reason="error", error="It broke."), GenerationError),
        (TokenChunk(finish_reason="error", error="No such grammar.", refused=True), ConstraintFailedError),
        (TokenChunk(finish_reason="abort"), AbortedError),
    ],
)
def test_a_failure_of_the_engine_is_raised(chunk: TokenChunk, error: type[Exception]) -> None:
    reader = AnswerReader(Answer("", "eos").prepared, TOKENIZER, frozenset({EOS}))
    with pytest.raises(error, match=chunk.error or "shutting down"):
        reader.push(chunk)
