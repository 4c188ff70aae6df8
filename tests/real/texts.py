"""Draw texts in several scripts, with numbers, white space, code and marks; name texts and prompts to compare by."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PROMPTS", "TEXTS", "drawn"]

_ROOT = Path(__file__).parents[2]
TEXTS = {
    "English": _ROOT / "docs" / "guides" / "sampling.md",
    "code": _ROOT / "src" / "plumbline" / "engines" / "native" / "core.py",
    "Chinese": Path(__file__).with_name("chinese.txt"),
}
"""Texts of this repository, by kind."""
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Water boils at",
    "1, 2, 3, 4,",
    "import json\n\nwith open(",
    "The three primary colours are",
    "In 1969, the first",
    '{"name": "Ada", "age":',
    "A haiku about the sea:\n",
    "SELECT name FROM users WHERE",
    "The opposite of hot is",
    "class Stack:\n    def __init__(self):",
    "Die Hauptstadt von Deutschland ist",
    "Once upon a time",
    "The chemical formula of water is",
    "for i in range(10):\n",
    "Q: What is 7 times 8?\nA:",
    "To make bread you need",
    "The planets of the solar system are",
    "git commit -m",
    "Roses are red,",
    "#include <stdio.h>\n\nint main(",
    "The largest ocean is",
    "Monday, Tuesday,",
    "Dear Sir or Madam,\n",
    "try:\n    value = int(text)\nexcept",
    "The speed of light is",
    "Step 1: open the",
    "Shakespeare wrote",
    "<html>\n<head>\n",
)

_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ",
    "0123456789.,-+eE/%$€ ½²٣Ⅷ",
    "!?.,;:'\"`~@#$%^&*()[]{}<>/\\|_-+= \n",
    " \t\n\r\u00a0\u3000\u2003\u200b\u2028\ufeff\x0b\x0c\x85",
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生",
    "あいうえおかきくけこがぎぐげごアイウエオカキクケコー。、「」",
    "가나다라마바사아자차카타파하안녕하세요한국어 ㄱㄴ가",
    "абвгдеёжзийклмнопрстуфхцчшщъыьэюя АБВГДЕ",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي ًٌٍَُِّْ،؟",
    "אבגדהוזחטיכלמנסעפצקרשת ְֱֲִֵֶ",
    "कखगघचछजझटठडढणतथदधनपफबभमयरलव ािीुूेैोौं्।",
    "กขคงจฉชซญดตถทธนบปผฝพฟภมยรลวศษสหฮะาิีึืุูเแโใไ่้๊๋์",
    "éÉßÅǅŉﬁΩſ\u0301\u0327\u0308aeo ",
    "🙂👩\u200d💻🇩🇪👍🏽❤\ufe0f☺1\ufe0f\u20e3",
)
_LINE = (
    "the of and don't I'M he'll THEY'VE we'D snake_case camelCase XMLHttpRequest GetHTTPResponse return def class "
    "Grüße Köln naïve São Paulo żółć Привет 世界 こんにちは 안녕 مرحبا 2024 3.14159 1234567890 0x1F https://a.example/b?c=d%20"
)
_WORDS = tuple(_LINE.split())


def drawn(count: int, markers: Sequence[str]) -> list[str]:
    """Return texts of up to some 120 characters; the same in every run.

    Args:
        count: how many.
        markers: texts of added tokens, which are in some of the texts, whole or in part.
    """
    draw = random.Random(1)
    found = []
    for number in range(count):
        match number % 4:
            case 0:
                parts = draw.choices(draw.choice(_ALPHABETS), k=draw.randint(1, 60))
            case 1:
                spaces = [draw.choice((" ", " ", " ", "  ", "\n", "\n\n", "\t", "")) for _ in range(12)]
                parts = [draw.choice(_WORDS) + space for space in spaces[: draw.randint(1, 12)]]
            case 2:
                parts = [
                    draw.choice(draw.choice(_ALPHABETS)) * draw.randint(1, 6)
                    for _ in range(draw.randint(1, 16))
                ]
            case _:
                marks = [draw.choice(markers) for _ in range(4)] if markers else [""]
                some = [*marks, *(mark[: draw.randint(1, len(mark))] for mark in marks if mark)]
                parts = draw.choices([*some, *_WORDS[:20], " ", "\n"], k=draw.randint(1, 10))
        found.append("".join(parts))
    return found
