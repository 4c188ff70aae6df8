"""Ask about a scene: questions in varied words, each with one right answer."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from plumbline_training.pictures import slots
from plumbline_training.pictures.scene import POSITIONS as CELLS
from plumbline_training.pictures.scene import SHAPES, Bar, Scene, SceneGroup


@dataclass(frozen=True)
class PictureQuestion:
    """A question about a picture.

    Attributes:
        topic: the row of the evaluation that it belongs to.
    """

    topic: str
    text: str
    answer: str


SHAPE = (
    "What shape is this?", "Which shape is this?", "What shape is it?", "What is the shape?", "Name the shape.",
    "What shape do you see?", "Which shape is in the picture?", "What shape is in the image?",
    "What is the shape in this picture?", "Tell me the shape.",
)  # fmt: skip
COLOUR = (
    "What color is it?", "What color is this?", "Which color is it?", "What is the color?",
    "What color is the {s}?", "Which color is the {s}?", "What is the color of the {s}?",
    "What color does the {s} have?", "Tell me the color of the {s}.", "What colour is the {s}?",
    "What color is the {s} in this picture?",
)  # fmt: skip
COLOUR_OF = COLOUR[4:]
SHAPE_OF = (
    "What shape is {c}?", "Which shape is {c}?", "What is the {c} shape?", "What shape is the {c} one?",
    "Which shape is the {c} one?", "What {c} shape is in the picture?",
)  # fmt: skip
COUNT_OF = (
    "How many {p} are there?", "How many {p} do you see?", "How many {p} are in the picture?", "Count the {p}.",
    "How many {p} can you see?", "How many {p} are in this image?", "What is the number of {p}?",
)  # fmt: skip
COUNT = (
    "How many shapes are there?", "How many objects are there?", "How many shapes do you see?", "Count the shapes.",
    "How many objects are in the picture?", "How many shapes are in the image?", "Count the objects.",
    "How many things are in the picture?",
)  # fmt: skip
POSITION = (
    "Where is the {s}?", "Where is the {s} in the picture?", "What is the position of the {s}?",
    "In which part of the picture is the {s}?",
)  # fmt: skip
GROUND = (
    "What color is the background?", "What is the color of the background?", "Which color is the background?",
    "What is the background color?", "What colour is the background?",
)  # fmt: skip
NEXT_TO = {
    "left": (
        "What is to the left of the {s}?",
        "What is left of the {s}?",
        "Which shape is left of the {s}?",
    ),
    "right": (
        "What is to the right of the {s}?",
        "What is right of the {s}?",
        "Which shape is right of the {s}?",
    ),
    "above": ("What is above the {s}?", "Which shape is above the {s}?"),
    "below": ("What is below the {s}?", "What is under the {s}?", "Which shape is below the {s}?"),
}
THERE = ("Is there a {s}?", "Is there a {s} in the picture?", "Do you see a {s}?", "Can you see a {s}?")
DESCRIBE = (
    "What is in the picture?", "What do you see?", "Describe the picture.", "Describe this image.",
    "What is this?", "What is in this image?", "What does the picture show?", "Describe the image.",
    "What can you see?", "What do you see in this picture?",
)  # fmt: skip
READ = (
    "What does it say?", "Read the text.", "What is written here?", "What does the text say?", "Read it.",
    "What text is in the picture?", "What is written in the picture?", "Read the text in the image.",
    "What does the picture say?", "What does the image say?",
)  # fmt: skip
READ_WORD = (
    "What word is this?",
    "Which word is it?",
    "Read the word.",
    "What is the word?",
    "Which word do you see?",
)
READ_NUMBER = (
    "What number is this?", "Which number is it?", "Read the number.", "What is the number?",
    "Which number do you see?", "What number is in the picture?", "Which digits do you see?", "Read the digits.",
)  # fmt: skip
TEXT_COLOUR = ("What color is the text?", "What is the color of the text?", "Which color is the text?")
HIGHEST = (
    "Which bar is the highest?", "Which bar is highest?", "Which bar is the tallest?", "What is the highest bar?",
    "Which bar has the largest value?",
)  # fmt: skip
LOWEST = (
    "Which bar is the lowest?", "Which bar is lowest?", "Which bar is the shortest?", "What is the lowest bar?",
    "Which bar has the smallest value?",
)  # fmt: skip
BARS = (
    "How many bars are there?",
    "How many bars do you see?",
    "Count the bars.",
    "How many bars does the chart have?",
)
END_COLOUR = {
    "highest": (
        "What color is the highest bar?",
        "What color is the tallest bar?",
        "Which color is the highest bar?",
    ),
    "lowest": (
        "What color is the lowest bar?",
        "What color is the shortest bar?",
        "Which color is the lowest bar?",
    ),
}
BAR_COLOUR = ("What color is bar {l}?", "Which color is bar {l}?", "What is the color of bar {l}?")


_MAIN = {"shape": 3.0, "colour": 3.0, "count": 5.0}
"""Topics of pictures of objects that most questions are about, with their shares."""


def plural(shape: str) -> str:
    return "crosses" if shape == "cross" else f"{shape}s"


def article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def named(group: SceneGroup) -> str:
    """Return a group in words, such as `a red circle` or `3 red circles`."""
    count = len(group.cells)
    return (
        article(f"{group.colour} {group.shape}")
        if count == 1
        else f"{count} {group.colour} {plural(group.shape)}"
    )


def description(scene: Scene) -> str:
    if scene.text:
        return f"the text {scene.text}"
    if scene.bars:
        return f"a bar chart with {len(scene.bars)} bars"
    *first, last = (named(group) for group in scene.groups)
    return f"{', '.join(first)} and {last}" if first else last


class Asker:
    """Make questions about one scene."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self.scene, self.rng = scene, rng
        self.single = [group for group in scene.groups if len(group.cells) == 1]

    def topics(self) -> dict[str, float]:
        """Return the topics that this scene has questions of, with their shares."""
        found = {"describe": 1.0, "background": 0.7}
        if self.scene.text:
            return {"digits" if self.scene.text.isdigit() else "words": 4.0, "text colour": 0.7, **found}
        if self.scene.bars:
            return {"charts": 5.0, **found}
        # Questions about one kind of several are beyond the text model; many of them drown the others.
        several, share = ("several ", 0.4) if len(self.scene.groups) > 1 else ("", 1.0)
        found |= {f"{several}{topic}": weight * share for topic, weight in _MAIN.items()}
        found |= {"present": 1.0, "none": 0.3}
        if self.single:
            found["position"] = 2.0
        if slots.across(self.scene) or slots.down(self.scene):
            found["relation"] = 2.0
        return found

    def any(self) -> PictureQuestion:
        topics = self.topics()
        return self.of(self.rng.choices(list(topics), list(topics.values()))[0])

    def of(self, topic: str) -> PictureQuestion:
        """Return a question of a topic of `topics`."""
        makers: dict[str, Callable[[], tuple[str, str]]] = {
            "shape": self._shape,
            "colour": self._colour,
            "count": self._count,
            "none": self._count_absent,
            "position": self._position,
            "relation": self._relation,
            "present": self._present,
            "background": lambda: (self._one(GROUND), self.scene.ground),
            "describe": lambda: (self._one(DESCRIBE), description(self.scene)),
            "words": lambda: (self._one(READ + READ_WORD), self.scene.text),
            "digits": lambda: (self._one(READ + READ_NUMBER), self.scene.text),
            "text colour": lambda: (self._one(TEXT_COLOUR), self.scene.text_colour),
            "charts": self._chart,
        }
        text, answer = makers[topic.removeprefix("several ")]()
        return PictureQuestion(topic, self._cased(text), answer)

    def _one(self, options: tuple[str, ...]) -> str:
        return self.rng.choice(options)

    def _cased(self, text: str) -> str:
        roll = self.rng.random()
        if roll < 0.08:
            return text[0].lower() + text[1:]
        if roll < 0.12:
            return text.rstrip("?.")
        return text

    def _group(self) -> SceneGroup:
        return self.rng.choice(self.scene.groups)

    def _shape(self) -> tuple[str, str]:
        group = self._group()
        if len(self.scene.groups) == 1 and self.rng.random() < 0.8:
            return self._one(SHAPE), group.shape
        return self._one(SHAPE_OF).format(c=group.colour), group.shape

    def _colour(self) -> tuple[str, str]:
        group = self._group()
        forms = COLOUR if len(self.scene.groups) == 1 else COLOUR_OF
        form = self._one(forms)
        if len(group.cells) > 1:
            form = form.replace("is the {s}", "are the {s}").replace("does the {s}", "do the {s}")
            return form.format(s=plural(group.shape)), group.colour
        return form.format(s=group.shape), group.colour

    def _count(self) -> tuple[str, str]:
        if self.rng.random() < 0.3:
            return self._one(COUNT), str(sum(len(group.cells) for group in self.scene.groups))
        group = self._group()
        word = plural(group.shape)
        if self.rng.random() < 0.25:
            word = f"{group.colour} {word}"
        return self._one(COUNT_OF).format(p=word), str(len(group.cells))

    def _count_absent(self) -> tuple[str, str]:
        return self._one(COUNT_OF).format(p=plural(self._absent())), "0"

    def _absent(self) -> str:
        here = {group.shape for group in self.scene.groups}
        return self.rng.choice([shape for shape in SHAPES if shape not in here])

    def _present(self) -> tuple[str, str]:
        form = self._one(THERE)
        if self.rng.random() < 0.5:
            return form.format(s=self._group().shape), "yes"
        return form.format(s=self._absent()), "no"

    def _position(self) -> tuple[str, str]:
        group = self.rng.choice(self.single)
        return self._one(POSITION).format(s=group.shape), CELLS[group.cells[0]]

    def _relation(self) -> tuple[str, str]:
        a, b = self.scene.groups
        found: list[tuple[str, str, str]] = []
        for number, (first, second) in (
            (slots.across(self.scene), ("left", "right")),
            (slots.down(self.scene), ("above", "below")),
        ):
            if number:
                near, far = (a, b) if number == 1 else (b, a)
                found += [(first, far.shape, near.shape), (second, near.shape, far.shape)]
        way, asked, answer = self.rng.choice(found)
        return self._one(NEXT_TO[way]).format(s=asked), answer

    def _chart(self) -> tuple[str, str]:
        bars = self.scene.bars
        roll = self.rng.random()
        if roll < 0.2:
            return self._one(BARS), str(len(bars))
        way = self.rng.choice(("highest", "lowest"))
        bar: Bar = (max if way == "highest" else min)(bars, key=lambda each: each.level)
        if roll < 0.7:
            return self._one(HIGHEST if way == "highest" else LOWEST), bar.label or bar.colour
        if roll < 0.85 or not bar.label:
            return self._one(END_COLOUR[way]), bar.colour
        other = self.rng.choice(bars)
        return self._one(BAR_COLOUR).format(l=other.label), other.colour
