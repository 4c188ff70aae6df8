"""Draw a scene as a picture: any size and shape of canvas, shades of colours, outlines, noise, blur."""

import math
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from plumbline_training.pictures.font import CHARACTERS, DIGITS, Style, write
from plumbline_training.pictures.scene import COLOURS, GROUND_SHARES, LEVELS, Scene

Colour = tuple[int, int, int]

SHADES: dict[str, list[Colour]] = {
    "red": [(255, 0, 0), (225, 30, 40), (240, 20, 20), (214, 39, 40)],
    "green": [(0, 128, 0), (0, 255, 0), (40, 170, 60), (50, 205, 50), (44, 160, 44)],
    "blue": [(0, 0, 255), (30, 80, 220), (31, 119, 180), (30, 30, 180), (70, 130, 240)],
    "yellow": [(255, 255, 0), (250, 225, 40), (255, 235, 60)],
    "orange": [(255, 165, 0), (255, 127, 14), (250, 140, 20)],
    "purple": [(128, 0, 128), (120, 40, 170), (148, 70, 189), (100, 20, 140)],
    "pink": [(255, 192, 203), (255, 105, 180), (250, 150, 190), (255, 130, 170)],
    "brown": [(139, 69, 19), (120, 70, 30), (150, 85, 45), (101, 67, 33)],
    "black": [(0, 0, 0), (20, 20, 20), (10, 10, 15)],
    "white": [(255, 255, 255), (250, 250, 250), (245, 245, 240)],
    "gray": [(128, 128, 128), (110, 110, 112), (150, 150, 150), (169, 169, 169)],
}
"""Some shades that people call by a name."""
_JITTER = 10


def shade(name: str, rng: random.Random) -> Colour:
    """Return a shade of a colour."""
    base = rng.choice(SHADES[name])
    if rng.random() < 0.4:
        return base
    r, g, b = (max(0, min(255, v + rng.randint(-_JITTER, _JITTER))) for v in base)
    return r, g, b


def _distance(a: Colour, b: Colour) -> float:
    """Return how different two colours look."""
    red, green, blue = (float(x - y) ** 2 for x, y in zip(a, b, strict=True))
    return math.sqrt(2 * red + 4 * green + 3 * blue)


def shade_on(ground: Colour, name: str, rng: random.Random) -> Colour:
    """Return a shade of a colour that can be seen on a background."""
    return max((shade(name, rng) for _ in range(2)), key=lambda each: _distance(each, ground))


def outline(shape: str) -> list[tuple[float, float]]:
    """Return the corners of a shape within the circle of radius 1."""
    if shape == "square":
        return [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]
    if shape == "triangle":
        return [(0, -0.9), (0.9, 0.75), (-0.9, 0.75)]
    if shape == "diamond":
        return [(0, -1), (0.75, 0), (0, 1), (-0.75, 0)]
    if shape == "cross":
        a, b = 0.32, 0.95
        return [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a),
                (-b, -a), (-a, -a)]  # fmt: skip
    if shape == "star":
        points = []
        for i in range(10):
            radius = 1.0 if i % 2 == 0 else 0.42
            angle = math.pi * (i / 5 - 0.5)
            points.append((radius * math.cos(angle), radius * math.sin(angle)))
        return points
    if shape == "heart":
        points = []
        for i in range(28):
            t = 2 * math.pi * i / 28
            x = 16 * math.sin(t) ** 3
            y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
            points.append((x / 17, -y / 17 - 0.1))
        return points
    return [(math.cos(2 * math.pi * i / 36) * 0.92, math.sin(2 * math.pi * i / 36) * 0.92) for i in range(36)]


_OUTLINES = {s: outline(s) for s in ("circle", "square", "triangle", "star", "cross", "diamond", "heart")}


class Painter:
    """Paint one scene.

    Args:
        rng: decides everything that the scene leaves open.
        width: of the picture, in pixels.
        height: of the picture, in pixels.
    """

    def __init__(self, rng: random.Random, width: int, height: int) -> None:
        self.rng, self.width, self.height = rng, width, height
        self.places: list[tuple[str, float, float, float, float]] = []
        """What was drawn where: a shape, a character or "bar", and its left, top, right and bottom in pixels."""

    def paint(self, scene: Scene) -> Image.Image:
        self.ground = shade(scene.ground, self.rng)
        self.image = Image.new("RGB", (self.width, self.height), self.ground)
        self.draw = ImageDraw.Draw(self.image)
        if scene.text:
            self._text(scene)
        elif scene.bars:
            self._chart(scene)
        else:
            self._objects(scene)
        return self.image

    def _objects(self, scene: Scene) -> None:
        rng = self.rng
        total = sum(len(group.cells) for group in scene.groups)
        side = min(self.width, self.height)
        # Objects in neighbouring cells keep apart: a radius of a sixth of the canvas touches the next cell.
        if total == 1:
            low, high = (0.12, 0.3) if scene.groups[0].cells[0] != 4 else (0.14, 0.46)
            radius = rng.uniform(low, high)
        else:
            radius = rng.uniform(0.085, 0.145)
        for group in scene.groups:
            colour = shade_on(self.ground, group.colour, rng)
            edge = shade(rng.choice(("black", "white", "gray")), rng) if rng.random() < 0.12 else None
            for cell in group.cells:
                size = radius * rng.uniform(0.88, 1.0)
                stray = 0.12 if total == 1 else 0.155 - size * 0.9
                x = (cell % 3 + 0.5) / 3 + rng.uniform(-1, 1) * max(0.015, stray)
                y = (cell // 3 + 0.5) / 3 + rng.uniform(-1, 1) * max(0.015, stray)
                # A large object is cut by the border of the picture if it stays in the middle of its cell.
                x, y = (min(max(v, size * 1.02), 1 - size * 1.02) for v in (x, y))
                self._shape(group.shape, (x * self.width, y * self.height), size * side, colour, edge)

    def collage(self) -> Image.Image:
        """Paint a shape or a character into most cells of a grid: much to recognise, nothing to count or to read."""
        rng = self.rng
        name = rng.choices(COLOURS, GROUND_SHARES)[0]
        self.ground = shade(name, rng)
        self.image = Image.new("RGB", (self.width, self.height), self.ground)
        self.draw = ImageDraw.Draw(self.image)
        side = rng.choice((1, 2, 2, 3, 3, 3, 4, 4))
        wide, high = self.width / side, self.height / side
        for cell in range(side * side):
            colour = shade_on(self.ground, rng.choice([other for other in SHADES if other != name]), rng)
            size = rng.uniform(0.5, 0.97)
            x = (cell % side + 0.5 + rng.uniform(-0.5, 0.5) * (1 - size)) * wide
            y = (cell // side + 0.5 + rng.uniform(-0.5, 0.5) * (1 - size)) * high
            roll = rng.random()
            if roll < 0.5:
                edge = shade(rng.choice(("black", "white", "gray")), rng) if rng.random() < 0.1 else None
                self._shape(rng.choice(list(_OUTLINES)), (x, y), size * min(wide, high) / 2, colour, edge)
            elif roll < 0.93:
                letter = rng.choice(DIGITS if rng.random() < 0.5 else CHARACTERS)
                style = Style(rng)
                tall = size * high
                broad = min(style.width(letter) / 6 * tall * rng.uniform(0.8, 1.3), size * wide)
                self._write(letter, (x - broad / 2, y - tall / 2, x + broad / 2, y + tall / 2), colour, style)
        return self.image

    def _shape(
        self, shape: str, centre: tuple[float, float], radius: float, colour: Colour, edge: Colour | None
    ) -> None:
        turn = self.rng.uniform(-0.14, 0.14) if self.rng.random() < 0.5 else 0.0
        cos, sin = math.cos(turn) * radius, math.sin(turn) * radius
        points = [(centre[0] + x * cos - y * sin, centre[1] + x * sin + y * cos) for x, y in _OUTLINES[shape]]
        self.draw.polygon(points, fill=colour)
        x, y = centre
        self.places.append((shape, x - radius, y - radius, x + radius, y + radius))
        if edge:
            thick = max(1, round(radius * 0.1))
            self.draw.line([*points, points[0], points[1]], fill=edge, width=thick, joint="curve")

    def _text(self, scene: Scene) -> None:
        rng, style = self.rng, Style(self.rng)
        length = len(scene.text)
        # Letters that are much wider than high, or the reverse, are hard to read for people as well.
        natural = style.width(scene.text) / 6
        widest = {1: 0.45, 2: 0.7}.get(length, 0.95)
        wide = rng.uniform(max(0.5 * widest, min(widest, 0.115 * length)), widest) * self.width
        high = wide / natural * rng.uniform(0.8, 1.35)
        if high > 0.9 * self.height:
            high = 0.9 * self.height
            wide = min(wide, natural * high * 1.5)
        high = max(high, 0.13 * self.height)
        left = rng.uniform(0.02, 0.98 - wide / self.width) * self.width
        top = rng.uniform(0.04, 0.96 - high / self.height) * self.height
        colour = shade_on(self.ground, scene.text_colour, rng)
        self._write(scene.text, (left, top, left + wide, top + high), colour, style)

    def _write(self, text: str, box: tuple[float, float, float, float], colour: Colour, style: Style) -> None:
        for character, left, right in write(self.draw, text, box, colour, style, self.rng):
            self.places.append((character, left, box[1], right, box[3]))

    def _chart(self, scene: Scene) -> None:
        rng, number = self.rng, len(scene.bars)
        labelled = bool(scene.bars[0].label)
        ink = (0, 0, 0) if sum(self.ground) > 300 else (255, 255, 255)
        left, right = rng.uniform(0.03, 0.15) * self.width, rng.uniform(0.86, 0.98) * self.width
        letter = rng.uniform(0.09, 0.13) * self.height if labelled else 0.0
        base = self.height * rng.uniform(0.9, 0.97) - letter * 1.25
        top = self.height * rng.uniform(0.03, 0.12)
        step = (right - left) / number
        bar = step * rng.uniform(0.5, 0.9)
        style = Style(rng)
        style.slant = 0.0
        for i, each in enumerate(scene.bars):
            middle = left + step * (i + 0.5)
            height = (base - top) * each.level / LEVELS
            box = (middle - bar / 2, base - height, middle + bar / 2, base)
            self.draw.rectangle(box, fill=shade_on(self.ground, each.colour, rng))
            self.places.append(("bar", *box))
            if labelled:
                wide = min(letter * 0.75 * self.width / self.height, bar)
                box = (middle - wide / 2, base + letter * 0.25, middle + wide / 2, base + letter * 1.25)
                self._write(each.label, box, ink, style)
        if rng.random() < 0.7:
            thick = max(1, self.width // 90)
            self.draw.line((left, base, right, base), fill=ink, width=thick)
            if rng.random() < 0.6:
                self.draw.line((left, top, left, base), fill=ink, width=thick)


@dataclass
class Picture:
    """A picture and what was drawn where: a name, and left, top, right and bottom as shares of the sides."""

    image: Image.Image
    places: list[tuple[str, float, float, float, float]]


def picture(scene: Scene | None, rng: random.Random) -> Picture:
    """Return a picture of a scene, or a collage, as large and as noisy as chance wants it."""
    longer = rng.choice((96, 128, 160, 192, 224, 320))
    ratio = math.exp(rng.uniform(-0.6, 0.6)) if rng.random() < 0.6 else 1.0
    width, height = (longer, round(longer / ratio)) if ratio > 1 else (round(longer * ratio), longer)
    painter = Painter(rng, width, height)
    image = painter.paint(scene) if scene is not None else painter.collage()
    if rng.random() < 0.2:
        small = rng.randint(56, 95)
        image = image.resize((small, small), Image.Resampling.BILINEAR)
    if rng.random() < 0.2:
        pixels = np.asarray(image, np.int16)
        noise = np.random.default_rng(rng.getrandbits(32)).integers(-9, 10, pixels.shape, np.int16)
        image = Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))
    places = [
        (name, left / width, top / height, right / width, bottom / height)
        for name, left, top, right, bottom in painter.places
    ]
    return Picture(image, places)
