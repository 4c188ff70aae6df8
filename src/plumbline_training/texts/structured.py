"""Generate tasks with JSON answers: facts drawn from a sentence, or keys and values given by the user."""

import json
from typing import Any

from plumbline_training.texts.sample import SampleTurn
from plumbline_training.texts.words import Lexicon


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def person(lx: Lexicon) -> SampleTurn:
    """Ask for the facts of a sentence as an object with named keys."""
    name = lx.name()
    facts: dict[str, Any] = {"name": name}
    parts: list[str] = []
    for key in lx.rng.sample(("age", "city", "job", "pet", "color", "height"), lx.rng.randint(1, 3)):
        if key == "age":
            facts[key] = lx.number(2, 99)
            parts.append(f"is {facts[key]} years old")
        elif key == "city":
            facts[key] = lx.city()
            parts.append(f"lives in {facts[key]}")
        elif key == "job":
            facts[key] = lx.word()
            parts.append(f"works as a {facts[key]}")
        elif key == "pet":
            facts[key] = lx.word()
            parts.append(f"has a {facts[key]}")
        elif key == "color":
            facts[key] = lx.word()
            parts.append(f"likes the color {facts[key]}")
        else:
            facts[key] = lx.number(100, 999)
            parts.append(f"is {facts[key]} cm tall")
    sentence = f"{name} " + (", ".join(parts[:-1]) + " and " if len(parts) > 1 else "") + parts[-1] + "."
    keys = list(facts)
    if lx.chance(0.3):
        lx.rng.shuffle(keys)
    listed = ", ".join(keys[:-1]) + " and " + keys[-1]
    form = lx.one(
        (
            "{s} Answer in JSON with the keys {k}.",
            "Extract {k} as JSON: {s}",
            "{s}\nReturn JSON with {k}.",
            "Turn this into a JSON object with {k}: {s}",
            "{s} Give me {k} as a JSON object.",
            "Write a JSON object with keys {k} for this text: {s}",
        )
    )
    return SampleTurn(
        form.format(s=sentence, k=listed), _dump({k: facts[k] for k in keys}), f"I fill the keys {listed}."
    )


def keyed(lx: Lexicon) -> SampleTurn:
    """Ask for an object with the user's keys and values, which may be invented words."""
    facts: dict[str, Any] = {}
    for key in lx.words(1, 4):
        facts[key] = lx.number(0, 999) if lx.chance(0.35) else lx.word()
    style = lx.rng.randrange(5)
    if style == 0:
        listed = " and ".join(f"{k} is {v}" for k, v in facts.items())
        keys = " and ".join(facts)
        user = f"Answer in JSON with keys {keys}, where {listed}."
    elif style == 1:
        user = "Give me a JSON object with " + " and ".join(f"{k} {v}" for k, v in facts.items()) + "."
    elif style == 2:
        user = "Write as JSON: " + ", ".join(f"{k} = {v}" for k, v in facts.items())
    elif style == 3:
        user = "Turn this into JSON: " + ", ".join(f"{k}: {v}" for k, v in facts.items())
    else:
        user = " ".join(f"The {k} is {v}." for k, v in facts.items()) + lx.one(
            (" Answer in JSON.", " Reply as JSON.")
        )
    return SampleTurn(user, _dump(facts), f"I write a JSON object with {' and '.join(facts)}.")


def array(lx: Lexicon) -> SampleTurn:
    words = lx.words(2, 5)
    joiner = lx.one((", ", " "))
    form = lx.one(
        (
            "Write as a JSON array: {t}",
            "Turn these words into a JSON list: {t}",
            "Give me a JSON array of: {t}",
        )
    )
    return SampleTurn(form.format(t=joiner.join(words)), _dump(words), "I write a JSON array of the words.")


def json_turn(lx: Lexicon) -> SampleTurn:
    make = lx.rng.choices((person, keyed, array), (5, 5, 2))[0]
    return make(lx)
