"""A font of our own: each capital and each digit as strokes, drawn with any width, slant and proportion."""

import math
import random
from functools import cache

from PIL.ImageDraw import ImageDraw

Point = tuple[float, float]
Stroke = list[Point]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"
CHARACTERS = DIGITS + LETTERS

_GLYPHS = {
    "A": "0,6 2,0 4,6|.8,4 3.2,4",
    "B": "0,0 0,6|0,0 2.3,0 c2.3,1.45,1.5,1.45,-90,90 0,2.9|0,2.9 2.4,2.9 c2.4,4.45,1.6,1.55,-90,90 0,6",
    "C": "c2.2,3,2.2,3,-45,-315",
    "D": "0,0 0,6|0,0 1.6,0 c1.6,3,2.4,3,-90,90 0,6",
    "E": "4,0 0,0 0,6 4,6|0,3 3.2,3",
    "F": "4,0 0,0 0,6|0,3 3.2,3",
    "G": "c2.2,3,2.2,3,-45,-345 4.2,3.3 2.4,3.3",
    "H": "0,0 0,6|4,0 4,6|0,3 4,3",
    "I": "2,0 2,6",
    "J": "3.6,0 c1.9,4.2,1.7,1.8,0,180",
    "K": "0,0 0,6|4,0 0,3.5|1.3,2.5 4,6",
    "L": "0,0 0,6 4,6",
    "M": "0,6 0,0 2.2,4 4.4,0 4.4,6",
    "N": "0,6 0,0 4,6 4,0",
    "O": "c2.2,3,2.2,3,0,360",
    "P": "0,6 0,0 2.3,0 c2.3,1.65,1.7,1.65,-90,90 0,3.3",
    "Q": "c2.2,3,2.2,3,0,360|2.6,4.2 4.4,6.3",
    "R": "0,6 0,0 2.3,0 c2.3,1.6,1.7,1.6,-90,90 0,3.2|2,3.2 4,6",
    "S": "c2,1.55,1.85,1.55,-35,-250 c2,4.45,1.95,1.55,-70,150",
    "T": "0,0 4.2,0|2.1,0 2.1,6",
    "U": "0,0 c2,4,2,2,180,0 4,0",
    "V": "0,0 2.1,6 4.2,0",
    "W": "0,0 1.3,6 2.6,1 3.9,6 5.2,0",
    "X": "0,0 4,6|4,0 0,6",
    "Y": "0,0 2,3 4,0|2,3 2,6",
    "Z": "0,0 4,0 0,6 4,6",
    "0": "c1.8,3,1.8,3,0,360",
    "1": ".6,1.5 2,0 2,6",
    "2": "c1.9,1.8,1.8,1.8,-170,35 0,6 4,6",
    "3": "c1.8,1.5,1.7,1.5,-155,90|1.2,3 1.8,3 c1.8,4.5,1.9,1.5,-90,155",
    "4": "3,6 3,0 0,4.2 4,4.2",
    "5": "3.7,0 .5,0 .2,2.9 c1.8,4.1,2,1.9,-130,150",
    "6": "3.2,0 c2,4.1,1.9,1.9,-160,-520",
    "7": "0,0 4,0 1.4,6",
    "8": "c1.9,1.5,1.6,1.5,90,450|c1.9,4.5,1.9,1.5,-90,270",
    "9": "c1.9,1.9,1.9,1.9,20,380 1.6,6",
}
"""Strokes on a grid 4 wide and 6 high. `cX,Y,A,B,FROM,TO` is an arc with its centre, radii and angles in degrees."""


@cache
def strokes(character: str) -> tuple[list[Stroke], float]:
    """Return the strokes of a character, from x = 0 on, and its width."""
    found = [_stroke(part) for part in _GLYPHS[character].split("|")]
    left = min(x for stroke in found for x, _ in stroke)
    right = max(x for stroke in found for x, _ in stroke)
    return [[(x - left, y) for x, y in stroke] for stroke in found], right - left


def _stroke(text: str) -> Stroke:
    points: Stroke = []
    for part in text.split():
        numbers = [float(number) for number in part.removeprefix("c").split(",")]
        if not part.startswith("c"):
            points.append((numbers[0], numbers[1]))
            continue
        x, y, a, b, start, end = numbers
        for i in range(15):
            angle = math.radians(start + (end - start) * i / 14)
            points.append((x + a * math.cos(angle), y + b * math.sin(angle)))
    return points


class Style:
    """How a text is written: its proportions and the width of its strokes."""

    def __init__(self, rng: random.Random) -> None:
        self.wide = rng.uniform(0.75, 1.2)
        self.gap = rng.uniform(1.2, 2.2)
        self.weight = rng.uniform(0.45, 1.35)
        """Width of a stroke, in units of the grid."""
        self.slant = rng.uniform(-0.05, 0.2) if rng.random() < 0.4 else 0.0
        self.shake = rng.uniform(0.0, 0.16)
        """How far points stray."""

    def width(self, text: str) -> float:
        """Return the width of a text whose height is 6 units."""
        letters = sum(strokes(c)[1] * self.wide for c in text)
        letters = max(letters, self.weight)
        return letters + (self.gap + self.weight * 0.5) * (len(text) - 1) + 6 * abs(self.slant)


def write(
    draw: ImageDraw,
    text: str,
    box: tuple[float, float, float, float],
    colour: tuple[int, int, int],
    style: Style,
    rng: random.Random,
) -> list[tuple[str, float, float]]:
    """Draw a text so that it fills a box (left, top, right, bottom); return each character with its left and right."""
    left, top, right, bottom = box
    unit_x, unit_y = (right - left) / style.width(text), (bottom - top) / 6
    thick = max(1, round(style.weight * min(unit_x, unit_y)))
    pen, found = 0.0, []
    for character in text:
        parts, wide = strokes(character)
        for part in parts:
            points = [
                (
                    left
                    + unit_x
                    * (pen + x * style.wide + rng.uniform(-1, 1) * style.shake + style.slant * (6 - y)),
                    top + unit_y * (y + rng.uniform(-1, 1) * style.shake),
                )
                for x, y in part
            ]
            draw.line(points, fill=colour, width=thick, joint="curve")
            if thick > 2:
                half = thick / 2 - 0.5
                for x, y in (points[0], points[-1]):
                    draw.ellipse((x - half, y - half, x + half, y + half), fill=colour)
        found.append(
            (character, left + unit_x * (pen - 0.4), left + unit_x * (pen + wide * style.wide + 0.4))
        )
        pen += wide * style.wide + style.gap + style.weight * 0.5
    return found
