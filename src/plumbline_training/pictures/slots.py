"""Say what a scene shows as pieces of text, one for each token of its picture.

The text model copies what stands in its prompt, piece by piece. So the eyes learn to write such pieces: each fact has
its place, a word of several tokens has several places, and a key stands before a value.
"""

from collections.abc import Callable

from tokenizers import Tokenizer

from plumbline_training.pictures.draw import Picture
from plumbline_training.pictures.font import CHARACTERS
from plumbline_training.pictures.model_with_eyes import TOKENS
from plumbline_training.pictures.scene import COLOURS, LONGEST_TEXT, SHAPES, Scene, SceneGroup

GROUPS = 3
NOTHING = "-"
KEYS = {
    "background": "ground", "total": "count", "shape": "sh", "color": "color", "count": "number", "place": "at",
    "text": "text", "highest": "hi", "lowest": "low", "objects": "object", "chart": "ch", "bars": "bar",
}  # fmt: skip
"""The keys, and the text whose first token they begin as."""
_ROWS, _COLUMNS = ("top", "center", "bottom"), ("left", "center", "right")
_WORD_SLOTS = {**dict.fromkeys(SHAPES, 4), **dict.fromkeys(COLOURS, 2), **dict.fromkeys(_ROWS + _COLUMNS, 2)}
PIECES: tuple[str, ...] = (
    NOTHING,
    *(f"key {key}" for key in KEYS),
    *(f"{word}.{i}" for word, count in _WORD_SLOTS.items() for i in range(count)),
    *CHARACTERS,
)
"""What a token can say; the first is nothing. `circle.1` is the second token of a word."""
PLACED: tuple[str, ...] = ("", "bar", *SHAPES, *CHARACTERS)
"""What a patch can be covered by; the first is the background."""


def patches(picture: Picture, side: int) -> list[int]:
    """Return what covers each patch of a picture of `side` times `side` patches, as index of `PLACED`."""
    found = [0] * (side * side)
    for name, left, top, right, bottom in picture.places:
        number = PLACED.index(name)
        for row in range(max(0, round(top * side)), min(side, round(bottom * side))):
            for column in range(max(0, round(left * side)), min(side, round(right * side))):
                found[row * side + column] = number
    return found


def _word(word: str, most: int = 4) -> list[str]:
    """Return the pieces of a word, as many as it has places; of no word as many of nothing."""
    if not word:
        return [NOTHING] * most
    count = _WORD_SLOTS[word]
    return ([f"{word}.{i}" for i in range(count)] + [NOTHING] * most)[:most]


def _relation(scene: Scene, place: Callable[[int], int]) -> int:
    """Return -1 if the first of two single objects has the smaller place, 1 if the larger, otherwise 0."""
    if [len(group.cells) for group in scene.groups] != [1, 1]:
        return 0
    a, b = (place(group.cells[0]) for group in scene.groups)
    return (a > b) - (a < b)


def across(scene: Scene) -> int:
    """Return -1 if the first of two objects is to the left of the second, 1 if to the right, otherwise 0."""
    return _relation(scene, lambda cell: cell % 3)


def down(scene: Scene) -> int:
    """Return -1 if the first of two objects is above the second, 1 if below, otherwise 0."""
    return _relation(scene, lambda cell: cell // 3)


def _group(group: SceneGroup | None) -> list[str]:
    if group is None:
        return [NOTHING] * 15
    place = [NOTHING] * 5
    if len(group.cells) == 1:
        row, column = divmod(group.cells[0], 3)
        place = ["key place", *_word(_ROWS[row], 2), *_word(_COLUMNS[column], 2)]
    return [
        "key shape", *_word(group.shape), "key color", *_word(group.colour, 2), "key count",
        str(len(group.cells)), *place,
    ]  # fmt: skip


def _ends(scene: Scene) -> list[str]:
    """Return the shapes at the left, the right, the top and the bottom, of two single objects."""
    found: list[str] = []
    for order in (across(scene), down(scene)):
        names = [group.shape for group in scene.groups[:: -1 if order > 0 else 1]] if order else ["", ""]
        found += [piece for name in names for piece in _word(name, 3)]
    return found


def pieces(scene: Scene) -> list[str]:
    """Return what each token of a picture of a scene says."""
    found = [f"key {scene.kind}", "key background", *_word(scene.ground, 2)]
    if scene.text:
        found += ["key count", str(len(scene.text)), "key text", *scene.text.ljust(LONGEST_TEXT)]
        found += ["key color", *_word(scene.text_colour, 2)]
    elif scene.bars:
        found += ["key bars", str(len(scene.bars))]
        for key, pick in (("highest", max), ("lowest", min)):
            bar = pick(scene.bars, key=lambda each: each.level)
            found += [f"key {key}", bar.label, "key color", *_word(bar.colour, 2)]
        for bar in scene.bars:
            found += [bar.label, *_word(bar.colour, 2)]
    else:
        found += ["key total", str(sum(len(group.cells) for group in scene.groups))]
        for i in range(GROUPS):
            found += _group(scene.groups[i] if i < len(scene.groups) else None)
        found += _ends(scene)
    found = [NOTHING if piece in ("", " ") else piece for piece in found]
    return found + [NOTHING] * (TOKENS - len(found))


_NUMBER = {piece: i for i, piece in enumerate(PIECES)}


def classes(scene: Scene) -> list[int]:
    """Return what each token says, as index of `PIECES`."""
    return [_NUMBER[piece] for piece in pieces(scene)]


def first_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the token of the text model that each piece begins as, in the order of `PIECES`."""
    found = []
    for piece in PIECES:
        if piece == NOTHING:
            text, index = "\n", 0
        elif piece.startswith("key "):
            text, index = KEYS[piece.removeprefix("key ")], 0
        elif "." in piece:
            text, _, number = piece.partition(".")
            index = int(number)
        else:
            text, index = piece, 0
        ids = tokenizer.encode(text).ids
        found.append(ids[index] if index < len(ids) else tokenizer.encode("\n").ids[0])
    return found
