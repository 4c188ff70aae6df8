"""Grammars whose language a regular expression gives as well, written and drawn."""

from __future__ import annotations

import random
import re

__all__ = ["STUDY", "drawn"]

_JSON = (
    'start: "{" "\\"name\\": " STRING ", \\"ages\\": [" NUMBER ("," NUMBER){0,2} "]" "}"\n'
    'STRING: /"[a-z ]{1,8}"/\nNUMBER: /[1-9][0-9]?/'
)

STUDY: list[tuple[str, str]] = [
    ('start: "yes" | "no"', "yes|no"),
    ("start: /[0-9]{1,6}/", "[0-9]{1,6}"),
    ("start: /[a-f]{3,9}/", "[a-f]{3,9}"),
    ('start: ("(" /[0-9]{1,4}/ ")"){1,3}', r"(\([0-9]{1,4}\)){1,3}"),
    ('start: "GO"', "GO"),
    (_JSON, r'\{"name": "[a-z ]{1,8}", "ages": \[[1-9][0-9]?(,[1-9][0-9]?){0,2}\]\}'),
    ('start: "a"{5} "b"?', "a{5}b?"),
    ("start: /\\p{Lu}[a-zäöü]{2,5}/", "[^\\W\\d_a-z][a-zäöü]{2,5}"),
    ('start: word (" " word){2}\nword: /[a-z]{2,6}/', "[a-z]{2,6}( [a-z]{2,6}){2}"),
    ('start: "é" /[àâ]{2}/ "🙂"', "é[àâ]{2}🙂"),
    ('start: /[01]{8}/ "\\n" /[01]{8}/', "[01]{8}\n[01]{8}"),
    ('start: x y | y x\nx: "left"\ny: "right"', "leftright|rightleft"),
    (
        'start: "[" (item ("," item){0,3})? "]"\nitem: "1" | "22" | "333"',
        r"\[((1|22|333)(,(1|22|333)){0,3})?\]",
    ),
    ("start: /(ab|cd){2,4}/", "(ab|cd){2,4}"),
]
"""(grammar, regular expression of the same language)."""


def drawn(rng: random.Random) -> tuple[str, str]:
    """Draw a finite grammar and its regular expression."""
    rules: list[str] = []
    text, pattern = _part(rng, 3, rules)
    return "\n".join([f"start: {text}", *rules]), pattern


def _part(rng: random.Random, depth: int, rules: list[str]) -> tuple[str, str]:
    kind = rng.choice(
        ("text", "class") if depth == 0 else ("text", "class", "sequence", "choice", "repeat", "rule")
    )
    if kind == "text":
        word = "".join(rng.choices("abcxyz {}[]:,éß7", k=rng.randint(1, 6)))
        return f'"{word}"', re.escape(word)
    if kind == "class":
        low = rng.randint(1, 4)
        body = f"[{rng.choice(('a-e', '0-9', 'A-Z', 'xyz_', 'äöü'))}]{{{low},{low + rng.randint(0, 5)}}}"
        return f"/{body}/", body
    if kind == "rule":
        text, pattern = _part(rng, depth - 1, rules)
        rules.append(f"r{len(rules)}: {text}")
        return f"r{len(rules) - 1}", pattern
    parts = [_part(rng, depth - 1, rules) for _ in range(1 if kind == "repeat" else rng.randint(2, 3))]
    if kind == "repeat":
        low = rng.randint(0, 2)
        times = f"{{{low},{low + rng.randint(1, 3)}}}"
        return f"({parts[0][0]}){times}", f"(?:{parts[0][1]}){times}"
    joint = " " if kind == "sequence" else " | "
    return (
        "(" + joint.join(text for text, _ in parts) + ")",
        "(?:" + joint.strip().join(pattern for _, pattern in parts) + ")",
    )
