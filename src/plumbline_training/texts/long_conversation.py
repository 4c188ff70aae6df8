"""Generate conversations of thousands of tokens, with many answers to learn from in each.

A long prompt spreads the attention of a small model over text that does not matter. One answer at the end of each
document would teach little about that for its cost, so most answers of these conversations are targets, at every
distance from the beginning.
"""

from dataclasses import dataclass, field, replace

from tokenizers import Tokenizer

from plumbline_training.texts import conversation, structured
from plumbline_training.texts import tool_texts as tools
from plumbline_training.texts.corpus import TEMPLATE, Document, prompt_of
from plumbline_training.texts.sample import Message, Sample, SampleTurn
from plumbline_training.texts.skills import SKILLS
from plumbline_training.texts.words import Lexicon

TARGET_SHARE = 0.75
"""Share of the answers that are targets; the others stand as the chat template writes earlier answers."""
ANSWER_WEIGHT = 0.25
"""Weight of a token of an answer: a long conversation has hundreds of answers, a short document one."""


@dataclass
class _Facts:
    """Facts from earlier turns or the system message, with questions about them and their answers."""

    known: dict[str, str] = field(default_factory=dict)
    name: str = ""

    def tell(self, lx: Lexicon) -> SampleTurn:
        if lx.chance(0.3):
            turn = conversation.introduces_user(lx)
            self.name = turn.answer.removeprefix("Nice to meet you, ").rstrip("!")
            return turn
        noun, value = lx.word(0.2), lx.one((lx.word(), lx.digits(1, 4)))
        self.known[noun] = value
        form = lx.one(("My {n} is {v}.", "Remember: my {n} is {v}.", "Please remember that my {n} is {v}."))
        return SampleTurn(form.format(n=noun, v=value), f"I will remember that your {noun} is {value}.", "")

    def ask(self, lx: Lexicon) -> SampleTurn:
        if self.name and (not self.known or lx.chance(0.3)):
            question = lx.one(
                ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?")
            )
            return SampleTurn(question, f"Your name is {self.name}.", "")
        noun = lx.one(list(self.known))
        question = lx.one((f"What is my {noun}?", f"What's my {noun}?", f"Tell me my {noun}."))
        return SampleTurn(question, f"Your {noun} is {self.known[noun]}.", "")


def passage(lx: Lexicon) -> str:
    """Return a piece of a long system message: prose, a list, a schema or a heading, none of it of use later."""
    kind = lx.rng.random()
    if kind < 0.45:
        return " ".join(
            " ".join(lx.words(5, 14, invented=0.2)).capitalize() + "." for _ in range(lx.rng.randint(1, 4))
        )
    if kind < 0.6:
        return "\n".join(f"- {' '.join(lx.words(2, 8, invented=0.3))}" for _ in range(lx.rng.randint(2, 6)))
    if kind < 0.7:
        return f"{'#' * lx.rng.randint(1, 3)} {' '.join(lx.words(1, 4, invented=0.2)).capitalize()}"
    if kind < 0.85:
        return str(tools.make_tool(lx).schema).replace("'", '"')
    turn = conversation.any_turn(lx)
    return lx.one((turn.answer, f"{turn.user}\n{turn.answer}"))


def filler(lx: Lexicon, tokenizer: Tokenizer, tokens: int) -> str:
    """Return passages of about `tokens` tokens."""
    parts: list[str] = []
    while tokens > 0:
        parts.append(passage(lx))
        tokens -= len(tokenizer.encode(parts[-1]).ids) + 1
    return lx.one(("\n", "\n\n")).join(parts)


def _turn(lx: Lexicon, facts: _Facts, box: list[tools.TrainingTool]) -> tuple[str, str]:
    """Return a request and the reply to it, as the chat template writes them."""
    kind = lx.rng.random()
    if box and kind < 0.3:
        wanted = tools.request(lx, lx.one(box))
        return wanted.text, f"<tool_call>\n{wanted.call.text()}\n</tool_call>"
    if kind < 0.45:
        turn = facts.ask(lx) if (facts.known or facts.name) and lx.chance(0.65) else facts.tell(lx)
    elif kind < 0.52:
        turn = conversation.unknown(lx)
    elif kind < 0.56:
        turn = structured.json_turn(lx)
    elif kind < 0.78:
        turn = SKILLS[lx.rng.choices(list(SKILLS), [share for _, share in SKILLS.values()])[0]][0](lx)
    else:
        turn = conversation.any_turn(lx)
    return turn.user, turn.answer


def long_conversation(lx: Lexicon, tokenizer: Tokenizer, tokens: int) -> Document:
    """Return a conversation of at least `tokens` tokens: it ends with the turn that reaches them."""
    facts = _Facts()
    box = tools.toolbox(lx, 1, lx.rng.choice((3, 6, 12))) if lx.chance(0.5) else []
    system = ""
    if lx.chance(0.6):
        # Half of these have little room left for the conversation, as with an agent's instructions.
        share = lx.rng.choice((lx.rng.random() * 0.6, 0.6 + lx.rng.random() * 0.35))
        system = filler(lx, tokenizer, int(tokens * share))
    elif lx.chance(0.5):
        system = conversation.system_prompt(lx)
    head: list[Message] = [{"role": "system", "content": system}] if system else []
    text = TEMPLATE.render(messages=head, tools=[tool.schema for tool in box] or None)
    ids = tokenizer.encode(text).ids
    weights = [0.0] * len(ids)
    while not any(weights) or len(ids) < tokens:
        asked, answered = _turn(lx, facts, box)
        target = lx.chance(TARGET_SHARE) or len(ids) + 200 > tokens
        opened = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        opened += "<think>\n\n</think>\n\n" if target else ""
        prompt = tokenizer.encode(opened).ids
        reply = tokenizer.encode(answered + "<|im_end|>").ids
        weight = ANSWER_WEIGHT * min(max(1.0, 10.0 / len(reply)), 3.0) if target else 0.0
        ids += prompt + reply + tokenizer.encode("\n").ids
        weights += [0.0] * len(prompt) + [weight] * len(reply) + [0.0]
    return Document("long_tools" if box else "long_talk", ids, weights)


def lengthened(lx: Lexicon, tokenizer: Tokenizer, sample: Sample, tokens: int) -> Sample:
    """Lengthen the prompt of a sample to about `tokens` tokens, with earlier turns or a long system message.

    If the sample is a long conversation itself, its first user message stays the first.
    """
    missing = tokens - len(tokenizer.encode(prompt_of(sample)).ids)
    messages = list(sample.messages)
    system = [messages.pop(0)] if messages[0]["role"] == "system" else []
    if lx.chance(0.5):
        words = [system[0]["content"]] if system else []
        system = [{"role": "system", "content": "\n".join([*words, filler(lx, tokenizer, missing)])}]
    else:
        at = 2 if sample.skill == "long" else 0
        earlier: list[Message] = []
        while missing > 0:
            turn = conversation.any_turn(lx)
            earlier += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}]
            missing -= len(tokenizer.encode(turn.user + turn.answer).ids) + 10
        messages[at:at] = earlier
    return replace(sample, messages=[*system, *messages])
