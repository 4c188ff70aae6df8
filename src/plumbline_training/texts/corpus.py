"""Turn samples into training documents: mixture, chat template and token weights.

A document is a prompt rendered with the shipped chat template and its reply. Only the reply has full weight.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from plumbline.pocket import MODEL_DIR
from plumbline_training.texts import conversation, structured
from plumbline_training.texts import tool_texts as tools
from plumbline_training.texts.sample import Message, Sample
from plumbline_training.texts.skills import SKILLS
from plumbline_training.texts.words import Lexicon

PROMPT_WEIGHT = 0.2
"""Weight of a prompt token as a target; only every fourth one is a target."""


DRILLS = {
    "sums": ("add", "subtract"),
    "letters": ("upper", "spell"),
    "digits": ("digits_to_words", "words_to_digits"),
    "lists": ("nth_word", "reverse", "repeat_times", "count", "larger"),
}


@dataclass
class Document:
    """Token ids, the weight of each id as a target, and the skill it teaches."""

    skill: str
    ids: list[int]
    weights: list[float]


def chat_template() -> Template:
    """Return the shipped template in a plain jinja2 sandbox."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda v: json.dumps(v, ensure_ascii=False)
    return env.from_string((MODEL_DIR / "chat_template.jinja").read_text(encoding="utf-8"))


TEMPLATE = chat_template()


def prompt_of(sample: Sample) -> str:
    return TEMPLATE.render(
        messages=sample.messages,
        tools=sample.tools or None,
        add_generation_prompt=True,
        enable_thinking=sample.thinking,
    )


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _with_system(lx: Lexicon, sample: Sample, share: float) -> Sample:
    if lx.chance(share):
        sample.messages.insert(0, {"role": "system", "content": conversation.system_prompt(lx)})
    return sample


def _history(lx: Lexicon, share: float, longest: int = 3) -> list[Message]:
    """Return earlier turns of a conversation, for some samples."""
    messages: list[Message] = []
    if lx.chance(share):
        for _ in range(lx.rng.randint(1, longest)):
            turn = conversation.any_turn(lx)
            messages += [_user(turn.user), {"role": "assistant", "content": turn.answer}]
    return messages


def instruction(lx: Lexicon, skill: str | None = None) -> Sample:
    names = list(SKILLS)
    skill = skill or lx.rng.choices(names, [SKILLS[n][1] for n in names])[0]
    turn = SKILLS[skill][0](lx)
    sample = Sample(skill, [*_history(lx, 0.12), _user(turn.user)], turn.answer, turn.thought)
    return _with_system(lx, sample, 0.3)


def json_answer(lx: Lexicon) -> Sample:
    turn = structured.json_turn(lx)
    sample = Sample("json", [*_history(lx, 0.08), _user(turn.user)], turn.answer, turn.thought)
    if lx.chance(0.1):
        sample.messages.insert(
            0, {"role": "system", "content": lx.one(("Answer in JSON.", "Reply only with JSON."))}
        )
        return sample
    return _with_system(lx, sample, 0.25)


def talk(lx: Lexicon) -> Sample:
    roll = lx.rng.random()
    if roll < 0.3:
        *messages, reply = conversation.recall(lx)
        return Sample("recall", messages, reply["content"], "The user told me this earlier.")
    if roll < 0.38:
        *messages, reply = conversation.persona(lx)
        return Sample("persona", messages, reply["content"], "The system message tells me this.")
    make = lx.rng.choices(
        (conversation.intent, conversation.capital, conversation.unknown, conversation.introduces_user),
        (60, 7, 12, 4),
    )[0]
    turn = make(lx)
    return _with_system(
        lx, Sample("talk", [*_history(lx, 0.2), _user(turn.user)], turn.answer, turn.thought), 0.35
    )


def _exchange(lx: Lexicon, box: list[tools.TrainingTool]) -> list[Message]:
    """Return an earlier call with its result and answer, so that a second call can follow."""
    earlier = tools.request(lx, lx.one(box))
    content, sentence, _ = tools.result_for(lx, earlier.tool)
    return [
        _user(earlier.text),
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_0", **earlier.call.as_message()}]},
        {"role": "tool", "tool_call_id": "call_0", "content": content},
        {"role": "assistant", "content": sentence},
    ]


def tool_call(lx: Lexicon, most: int = 4) -> Sample:
    box = tools.toolbox(lx, 1, most)
    wanted = tools.request(lx, lx.one(box))
    before = _exchange(lx, box) if lx.chance(0.1) else _history(lx, 0.08)
    sample = Sample("tool_call", [*before, _user(wanted.text)], calls=[wanted.call])
    sample.thought = tools.thought_for([wanted])
    sample.tools = [t.schema for t in box]
    return _with_system(lx, sample, 0.35)


def parallel_call(lx: Lexicon) -> Sample:
    box = tools.toolbox(lx, 1, 3, short=lx.chance(0.6))
    text, wanted = tools.parallel(lx, box)
    sample = Sample(
        "parallel", [_user(text)], calls=[r.call for r in wanted], thought=tools.thought_for(wanted)
    )
    sample.tools = [t.schema for t in box]
    return _with_system(lx, sample, 0.35)


def tool_result(lx: Lexicon) -> Sample:
    """Return a sample with a reply that reports the results of calls."""
    box = tools.toolbox(lx, 1, 2)
    if lx.chance(0.25):
        text, wanted = tools.parallel(lx, box)
    else:
        wanted = [tools.request(lx, lx.one(box))]
        text = wanted[0].text
    calls: list[dict[str, Any]] = [{"id": f"call_{i}", **r.call.as_message()} for i, r in enumerate(wanted)]
    called: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    messages = [*_history(lx, 0.08), _user(text), called]
    sentences, must = [], []
    for i, r in enumerate(wanted):
        content, sentence, values = tools.result_for(lx, r.tool)
        messages.append({"role": "tool", "tool_call_id": f"call_{i}", "content": content})
        sentences.append(sentence)
        must += values
    sample = Sample(
        "tool_result", messages, " ".join(sentences), "The tool has answered, so I tell the result."
    )
    sample.must_contain = must
    sample.tools = [t.schema for t in box] if lx.chance(0.9) else []
    sample.thinking = lx.chance(0.3)
    if sample.thinking and lx.chance(0.5):
        called["reasoning_content"] = tools.thought_for(wanted)
    return _with_system(lx, sample, 0.3)


def no_tool(lx: Lexicon) -> Sample:
    """Return a sample with tools that the request does not need."""
    skill = lx.one([name for name in SKILLS if name not in DRILLS["sums"]])  # there might be a tool that adds
    sample = lx.rng.choices((talk(lx), instruction(lx, skill), json_answer(lx)), (5, 3, 1))[0]
    box = tools.toolbox(lx, 1, 2)
    if lx.chance(0.2):
        sample.messages[-1:-1] = _exchange(lx, box)
    sample.tools = [t.schema for t in box]
    sample.skill = "no_tool"
    return sample


def long_chat(lx: Lexicon, turns: int) -> Sample:
    """Return a long conversation that asks at the end for something from its beginning."""
    told, answer, *rest = conversation.recall(lx)
    for _ in range(turns):
        turn = conversation.any_turn(lx)
        rest[-2:-2] = [_user(turn.user), {"role": "assistant", "content": turn.answer}]
    return Sample("long", [told, answer, *rest[:-1]], rest[-1]["content"], "The user told me this earlier.")


def long_sample(lx: Lexicon) -> Sample:
    """Return a sample of up to about a third of the context: many tools or many turns."""
    size = lx.rng.choice((1, 1, 1, 2, 2, 3, 5))
    if lx.chance(0.5):
        sample = tool_call(lx, 6 * size)
        sample.skill = "long_tools"
        return sample
    return long_chat(lx, lx.rng.randint(4, 12) * size)


KINDS: dict[str, Callable[[Lexicon], Sample]] = {
    "instruction": instruction,
    "json": json_answer,
    "talk": talk,
    "tool_call": tool_call,
    "parallel": parallel_call,
    "tool_result": tool_result,
    "no_tool": no_tool,
    "long": long_sample,
}
DEFAULT_MIX: dict[str, float] = {
    "instruction": 34,
    "json": 5,
    "talk": 13,
    "tool_call": 42,
    "parallel": 28,
    "tool_result": 5,
    "no_tool": 5,
    "long": 0.6,
}


def make_sample(lx: Lexicon, mix: dict[str, float] | None = None) -> Sample:
    """Draw one sample from the mixture (shares of documents)."""
    mix = mix or DEFAULT_MIX
    kind = lx.rng.choices(list(mix), list(mix.values()))[0]
    sample = KINDS[kind](lx.narrowed(lx.rng.randint(6, 30)) if lx.chance(0.5) else lx)
    if sample.skill != "tool_result":
        sample.thinking = lx.chance(0.35)
    return sample


def induction(lx: Lexicon, tokenizer: Tokenizer) -> Document:
    """Return a run of words twice, without chat markup, which teaches copying in the first minutes."""
    words = lx.words(6, 24, invented=0.8)
    first = " " + " ".join(words)
    ids = tokenizer.encode(first).ids
    weights = [0.0] * (len(ids) + 1) + [0.5] * (len(ids) - 1)
    return Document("induction", ids * 2, weights)


class DocumentWriter:
    """Turn samples into documents with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def document(self, sample: Sample) -> Document:
        prompt = self.tokenizer.encode(prompt_of(sample)).ids
        reply = self.tokenizer.encode(sample.completion() + "<|im_end|>").ids
        start = len(prompt) % 4
        weights = [PROMPT_WEIGHT if i % 4 == start else 0.0 for i in range(len(prompt))]
        weights += [min(max(1.0, 10.0 / len(reply)), 3.0)] * len(reply)  # so that short answers count too
        name = f"{sample.skill}+" if sample.thinking else sample.skill
        return Document(name, prompt + reply, weights)

    def drill(self, lx: Lexicon) -> Document:
        """Return a chat of many short turns of one kind, with every answer at full weight."""
        kind = lx.rng.choices(list(DRILLS), (5, 3, 1, 4))[0]
        ids: list[int] = []
        weights: list[float] = []
        for _ in range(lx.rng.randint(4, 8)):
            turn = SKILLS[lx.one(DRILLS[kind])][0](lx)
            asked = f"<|im_start|>user\n{turn.user}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
            prompt = self.tokenizer.encode("\n" + asked if ids else asked).ids
            reply = self.tokenizer.encode(turn.answer + "<|im_end|>").ids
            ids += prompt + reply
            weights += [0.0] * len(prompt) + [min(max(1.0, 10.0 / len(reply)), 3.0)] * len(reply)
        return Document(f"drill_{kind}", ids, weights)
