"""Choose what a picture shows. A scene is plain values; its key decides whether training or the evaluation draws it."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from plumbline_training.pictures.font import DIGITS, LETTERS
from plumbline_training.texts.words import ADJECTIVES, NOUNS, Split, side

SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond", "heart")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "brown", "black", "white", "gray")
POSITIONS = (
    "top left", "top", "top right",
    "left", "center", "right",
    "bottom left", "bottom", "bottom right",
)  # fmt: skip
MOST_OBJECTS = 6
LONGEST_TEXT = 6
LEVELS = 10
"""Heights that bars have."""
LABELS = "ABCDEF"
KINDS = ("objects", "text", "chart")
GROUND_SHARES = (0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 2, 9, 1.5)
"""How often a background has each colour: most are white, as in the pictures that people make."""


@dataclass(frozen=True)
class SceneGroup:
    """Objects of one shape and one colour, each in a cell of a 3 by 3 grid if there is one only."""

    shape: str
    colour: str
    cells: tuple[int, ...]
    """Cells of a grid of 3 by 3, one for each object; several objects may share none."""


@dataclass(frozen=True)
class Bar:
    """One bar of a chart."""

    label: str
    colour: str
    level: int


@dataclass(frozen=True)
class Scene:
    """What a picture shows: objects, a text or a chart, on a background of one colour."""

    ground: str
    groups: tuple[SceneGroup, ...] = ()
    text: str = ""
    text_colour: str = ""
    bars: tuple[Bar, ...] = ()

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return "text" if self.text else "chart" if self.bars else "objects"

    @property
    def side(self) -> Split:
        """Side of the split that the scene belongs to.

        There are ten digits only, so training draws every number of one or two digits, and the evaluation draws some of
        them in colours that training does not combine with them.
        """
        if 0 < len(self.text) < 3 and side(f"{self.text} {self.text_colour} on {self.ground}") == "train":
            return "train"
        return side(self.key)

    @property
    def key(self) -> str:
        """What makes two pictures the same question: contents, colours and places, not sizes or noise."""
        if self.text:
            return self.text
        if self.bars:
            return " ".join(f"{bar.label}{bar.colour}{bar.level}" for bar in self.bars)
        return f"{self.ground}: " + ", ".join(
            f"{group.shape} {group.colour} {group.cells}" for group in self.groups
        )


SHARES: dict[Split, dict[str, float]] = {
    "train": {"objects": 4, "word": 0.5, "digits": 5, "chart": 1.5},
    "eval": {"objects": 5, "word": 1, "digits": 4, "chart": 1},
}
"""How often a scene has each kind. Training has more of what is learned last: long numbers."""
LENGTHS: dict[Split, tuple[int, ...]] = {
    "train": (1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5),
    "eval": (1, 1, 2, 2, 3, 3, 4, 5),
}
"""Lengths of numbers, each as often as it stands here."""


@dataclass
class Scenes:
    """Draw scenes of one side of the split."""

    rng: random.Random
    split: Split = "train"

    def any(self) -> Scene:
        shares = SHARES[self.split]
        kind = self.rng.choices(list(shares), list(shares.values()))[0]
        return self.of(kind)

    def of(self, kind: str, objects: int = 0) -> Scene:
        """Return a scene of a kind; `objects` is the number of its objects if it is not 0."""
        # The length is chosen first: short numbers are refused more often.
        length = self.rng.choice(LENGTHS[self.split])
        make: dict[str, Callable[[], Scene]] = {
            "objects": lambda: self._objects(objects),
            "word": self._word,
            "digits": lambda: self._digits(length),
            "chart": self._chart,
        }
        for _ in range(1000):
            scene = make[kind]()
            if scene.side == self.split:
                return scene
        raise RuntimeError("no scene of this kind is on this side of the split")

    def _ground(self) -> str:
        return self.rng.choices(COLOURS, GROUND_SHARES)[0]

    def _colours(self, count: int, ground: str) -> list[str]:
        return self.rng.sample([c for c in COLOURS if c != ground], count)

    def _objects(self, total: int = 0) -> Scene:
        rng = self.rng
        total = total or rng.choices(range(1, MOST_OBJECTS + 1), (6, 4, 4, 4, 4, 4))[0]
        most = min(total, 3)
        number = rng.choices(range(1, most + 1), (6, 3, 1)[:most])[0]
        cuts = sorted(rng.sample(range(1, total), number - 1))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
        ground = self._ground()
        cells = rng.sample(range(9), total)
        groups = []
        for shape, colour, size in zip(
            rng.sample(SHAPES, number), self._colours(number, ground), sizes, strict=True
        ):
            groups.append(SceneGroup(shape, colour, tuple(sorted(cells[:size]))))
            cells = cells[size:]
        return Scene(ground, tuple(sorted(groups, key=lambda group: SHAPES.index(group.shape))))

    def _text(self, text: str) -> Scene:
        ground = self._ground()
        return Scene(ground, text=text, text_colour=self._colours(1, ground)[0])

    def _word(self) -> Scene:
        rng = self.rng
        if rng.random() < 0.4:
            word = rng.choice(_SHORT_WORDS)
        else:
            word = "".join(rng.choices(LETTERS, k=rng.choice((1, 2, 3, 3, 4, 4, 5, 5, 6))))
        return self._text(word)

    def _digits(self, length: int) -> Scene:
        return self._text("".join(self.rng.choices(DIGITS, k=length)))

    def _chart(self) -> Scene:
        rng = self.rng
        number = rng.choice((2, 3, 3, 4, 4, 5))
        ground = rng.choices(("white", "black", "gray"), (8, 1, 1))[0]
        labelled = rng.random() < 0.75
        colours = (
            self._colours(number, ground)
            if not labelled or rng.random() < 0.7
            else self._colours(1, ground) * number
        )
        labels = [""] * number
        if labelled:
            labels = list(LABELS[:number]) if rng.random() < 0.6 else rng.sample(LABELS, number)
        levels = rng.sample(range(1, LEVELS + 1), number)
        return Scene(ground, bars=tuple(Bar(*each) for each in zip(labels, colours, levels, strict=True)))


_SHORT_WORDS = [w.upper() for w in [*NOUNS, *ADJECTIVES] if len(w) <= LONGEST_TEXT]
