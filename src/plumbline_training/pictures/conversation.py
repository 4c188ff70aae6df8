"""Make conversations about one picture: questions and answers, and now and then something else."""

import random
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from plumbline_training.pictures.model_with_eyes import IMAGE_TOKEN, TOKENS
from plumbline_training.pictures.questions import Asker, PictureQuestion
from plumbline_training.pictures.scene import Scene
from plumbline_training.texts import conversation as talk
from plumbline_training.texts.corpus import TEMPLATE
from plumbline_training.texts.sample import Message, SampleTurn
from plumbline_training.texts.skills import SKILLS
from plumbline_training.texts.words import Lexicon

THOUGHT = "I look at the picture."
"""What the model thinks before it answers a question about a picture."""


@dataclass
class Talk:
    """A picture in a prompt and several ways to go on, which do not see each other.

    Attributes:
        ids: the beginning with the picture, then one branch after the other.
        branch: 0 for the beginning, and the number of its branch for each other token.
        positions: of each token; every branch goes on where the beginning ends.
        wanted: whether a token belongs to an answer.
        topics: of the branches.
    """

    ids: list[int]
    branch: list[int]
    positions: list[int]
    wanted: list[bool]
    topics: list[str]


class Talks:
    """Make conversations about scenes with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, lexicon: Lexicon, image_token: int) -> None:
        self.tokenizer, self.lexicon, self.image_token = tokenizer, lexicon, image_token
        self.rng: random.Random = lexicon.rng

    def talk(self, scene: Scene, questions: int) -> Talk:
        """Return the beginning of a conversation with a picture and a number of questions about it."""
        asker = Asker(scene, self.rng)
        found = Talk([], [], [], [], [])
        start = TEMPLATE.render(messages=[*self._before(), _picture()], add_generation_prompt=False)
        before, _, end = start.partition(IMAGE_TOKEN)
        self._add(found, 0, before, False)
        _extend(found, 0, [self.image_token] * TOKENS, False)
        self._add(found, 0, end.removesuffix("<|im_end|>\n"), False)
        for number in range(1, questions + 1):
            self._branch(found, number, asker)
        return found

    def _before(self) -> list[Message]:
        """Return what comes before the message with the picture."""
        rng, messages = self.rng, list[Message]()
        if rng.random() < 0.2:
            messages.append({"role": "system", "content": talk.system_prompt(self.lexicon)})
        if rng.random() < 0.06:
            turn = self._other()
            messages += [
                {"role": "user", "content": turn.user},
                {"role": "assistant", "content": turn.answer},
            ]
        return messages

    def _branch(self, found: Talk, number: int, asker: Asker) -> None:
        question = asker.any()
        self._add(found, number, f"{question.text}<|im_end|>\n", False)
        if self.rng.random() < 0.08:
            # One more turn, which may need the picture or not.
            self._add(found, number, f"<|im_start|>assistant\n{question.answer}<|im_end|>\n", False)
            if self.rng.random() < 0.5:
                turn = self._other()
                question = PictureQuestion("no picture", turn.user, turn.answer)
            else:
                question = asker.any()
            self._add(found, number, f"<|im_start|>user\n{question.text}<|im_end|>\n", False)
        self._add(found, number, "<|im_start|>assistant\n", False)
        if question.topic != "no picture" and self.rng.random() < 0.08:
            self._add(found, number, f"<think>\n{THOUGHT}\n</think>\n\n", True)
        else:
            self._add(found, number, "<think>\n\n</think>\n\n", False)
        self._add(found, number, f"{question.answer}<|im_end|>", True)
        found.topics.append(question.topic)

    def _add(self, found: Talk, branch: int, text: str, wanted: bool) -> None:
        _extend(found, branch, self.tokenizer.encode(text).ids, wanted)

    def _other(self) -> SampleTurn:
        """Return a question without a picture and its answer."""
        return SKILLS[self.rng.choice(("repeat", "add", "upper", "spell"))][0](self.lexicon)


def _picture() -> Message:
    return {"role": "user", "content": [{"type": "image"}]}


def _extend(found: Talk, branch: int, ids: list[int], wanted: bool) -> None:
    new = not found.branch or found.branch[-1] != branch
    start = (found.branch.count(0) if new else found.positions[-1] + 1) if found.ids else 0
    found.ids += ids
    found.branch += [branch] * len(ids)
    found.positions += range(start, start + len(ids))
    found.wanted += [wanted] * len(ids)


@dataclass
class TalkBatch:
    """Talks of one step, padded to one length.

    Attributes:
        ids: int64 [talks, tokens].
        positions: int64 [talks, tokens].
        mask: bool [talks, 1, tokens, tokens]; whether a token sees another.
        wanted: bool [talks, tokens]; whether a token is to be predicted.
        branch: int64 [talks, tokens].
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    wanted: Tensor
    branch: Tensor


def joined(talks: list[Talk]) -> TalkBatch:
    """Return talks as one batch."""
    length = max(len(each.ids) for each in talks)

    def padded(rows: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows])

    branch = padded([each.branch for each in talks], -1)
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    same = (branch[:, :, None] == branch[:, None, :]) | (branch[:, None, :] == 0)
    return TalkBatch(
        padded([each.ids for each in talks], 0),
        padded([each.positions for each in talks], 0),
        (earlier & same)[:, None],
        padded([[int(w) for w in each.wanted] for each in talks], 0).bool(),
        branch,
    )
