"""Generate instructions with one right answer: copying, counting, letters, digits, sums and word lists.

Every skill is a function from a `Lexicon` to a `SampleTurn`. `SKILLS` names them with the share each has among
the instruction samples.
"""

from collections.abc import Callable

from plumbline_training.texts.sample import SampleTurn
from plumbline_training.texts.words import Lexicon

DIGIT_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TIMES = ["once", "twice", "three times", "four times", "five times", "six times"]
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]


def _polite(lx: Lexicon, text: str) -> str:
    """Vary how a request opens and ends."""
    roll = lx.rng.random()
    if roll < 0.12:
        text = "Please " + text[0].lower() + text[1:]
    elif roll < 0.16:
        text = "Can you " + text[0].lower() + text[1:].rstrip(".") + "?"
    elif roll < 0.20:
        text = text[0].lower() + text[1:]
    return text


def phrase(lx: Lexicon, low: int = 1, high: int = 7) -> str:
    """Return a text to repeat: words, sometimes with a capital, a number or an end mark."""
    words = lx.words(low, high, invented=0.6)
    if lx.chance(0.3):
        words[lx.rng.randrange(len(words))] = str(lx.number(0, 999))
    if lx.chance(0.25):
        words[0] = words[0].capitalize()
    if lx.chance(0.15):
        words = [w.capitalize() for w in words]
    text = " ".join(words)
    return text + lx.one(("!", "?", ".")) if lx.chance(0.15) else text


def repeat(lx: Lexicon) -> SampleTurn:
    text = phrase(lx)
    bare = text[-1] not in "!?."
    forms = [
        f"Repeat: {text}",
        f"Say: {text}",
        f'Say "{text}"',
        f'Repeat "{text}"',
        f"Say exactly: {text}",
        f"Repeat after me: {text}",
        f"Reply with exactly: {text}",
        f'Answer with "{text}"',
        f"Echo: {text}",
        f"Repeat this: {text}",
        f'Reply with "{text}" and nothing else',
        f"Say '{text}'",
        f"Repeat the following: {text}",
        f"Say {text}",
        f"Repeat {text}",
    ]
    if bare:
        forms += [f"Say the words {text}.", f'Repeat the text "{text}".', f'Say "{text}".', f"Echo {text}."]
        if " " not in text:
            forms += [f"Say the word {text}.", f"Reply with the single word {text}.", f"Answer only {text}."]
    return SampleTurn(lx.one(forms), text, "The user wants me to repeat the text.")


def repeat_times(lx: Lexicon) -> SampleTurn:
    word, n = lx.word(), lx.rng.randint(2, 6)
    how = lx.one((f"{n} times", TIMES[n - 1]))
    form = lx.one(
        ("Say {w} {h}.", 'Say "{w}" {h}.', "Repeat the word {w} {h}.", "Write {w} {h}.", "Repeat {w} {h}.")
    )
    return SampleTurn(
        _polite(lx, form.format(w=word, h=how)),
        " ".join([word] * n),
        f"I write {word} {how}, with spaces between.",
    )


def count(lx: Lexicon) -> SampleTurn:
    longest = 50 if lx.chance(0.1) else 12
    low, high = lx.pair("to", 0, 60 if longest == 12 else 100)
    while not 1 <= abs(high - low) <= longest or (high < low and lx.chance(0.6)):
        low, high = lx.pair("to", 0, 60 if longest == 12 else 100)
    if lx.chance(0.15):
        low, high = 1, lx.rng.randint(3, 20)
    step = 1 if high > low else -1
    way = "" if step == 1 else lx.one((" down", " down", " backwards"))
    form = lx.one(
        (
            "Count{w} from {a} to {b}.",
            "Count{w} from {a} to {b}",
            "List the numbers{w} from {a} to {b}.",
            "Give me the numbers{w} from {a} to {b}.",
            "Write the numbers{w} from {a} to {b}.",
        )
    )
    if low == 1 and lx.chance(0.5):
        form = lx.one(("Count to {b}.", "Count to {b}", "Count up to {b}."))
    answer = ", ".join(str(i) for i in range(low, high + step, step))
    return SampleTurn(
        _polite(lx, form.format(w=way, a=low, b=high)),
        answer,
        f"I count {'up' if step == 1 else 'down'} from {low} to {high}.",
    )


def upper(lx: Lexicon) -> SampleTurn:
    text = " ".join(lx.words(1, 3, invented=0.7))
    form = lx.one(
        (
            "Upper-case: {t}",
            "Write {t} in upper case.",
            "Put this in capital letters: {t}",
            "Uppercase: {t}",
            'Write "{t}" in capital letters.',
            "Make this upper case: {t}",
            "Convert to upper case: {t}",
            "Change {t} to upper case.",
            "Put {t} in capitals.",
        )
    )
    return SampleTurn(_polite(lx, form.format(t=text)), text.upper(), f"I write {text} in capital letters.")


def spell(lx: Lexicon) -> SampleTurn:
    word = lx.word(0.7)
    form = lx.one(
        ("Spell {w}.", "Spell the word {w}.", 'Spell "{w}".', "How do you spell {w}?", "Spell: {w}")
    )
    return SampleTurn(form.format(w=word), "-".join(word), f"I give the letters of {word} one by one.")


def digits_to_words(lx: Lexicon) -> SampleTurn:
    digits = lx.digits(1, 7) if lx.chance(0.85) else lx.digits(8, 12)
    form = lx.one(
        (
            "Write {d} digit by digit in words.",
            "Translate the digits {d} to words.",
            "Spell out the digits {d}.",
            "Digits to words: {d}",
            "Write the digits of {d} as words.",
            "Translate {d} to words.",
            "Read {d} digit by digit.",
            "Turn the digits {d} into words.",
        )
    )
    answer = " ".join(DIGIT_WORDS[int(d)] for d in digits)
    return SampleTurn(_polite(lx, form.format(d=digits)), answer, f"I name each digit of {digits}.")


def words_to_digits(lx: Lexicon) -> SampleTurn:
    digits = lx.digits(1, 6)
    text = " ".join(DIGIT_WORDS[int(d)] for d in digits)
    form = lx.one(
        ("Write {t} in digits.", "Translate {t} to digits.", "Words to digits: {t}", "Turn {t} into digits.")
    )
    return SampleTurn(_polite(lx, form.format(t=text)), digits, "I write each word as a digit.")


def add(lx: Lexicon) -> SampleTurn:
    a, b = lx.pair("+", 0, 99) if lx.chance(0.9) else lx.pair("+", 0, 12)
    form = lx.one(
        (
            "What is {a} + {b}?",
            "What is {a} plus {b}?",
            "Add {a} and {b}.",
            "{a} + {b}",
            "{a} + {b} =",
            "Compute {a} + {b}.",
            "How much is {a} + {b}?",
            "Calculate {a} plus {b}.",
            "What's {a}+{b}?",
            "Sum {a} and {b}.",
            "What is the sum of {a} and {b}?",
            "{a}+{b}",
        )
    )
    ones, tens = a % 10 + b % 10, a // 10 * 10 + b // 10 * 10
    thought = (
        f"Ones: {a % 10} + {b % 10} = {ones}. Tens: {a // 10 * 10} + {b // 10 * 10} = {tens}. "
        f"{tens} + {ones} = {a + b}."
    )
    return SampleTurn(form.format(a=a, b=b), str(a + b), thought)


def subtract(lx: Lexicon) -> SampleTurn:
    a, b = lx.pair("-", 0, 99)
    while a < b and not lx.chance(0.1):
        a, b = lx.pair("-", 0, 99)
    form = lx.one(
        (
            "What is {a} - {b}?",
            "What is {a} minus {b}?",
            "Subtract {b} from {a}.",
            "{a} - {b}",
            "{a} - {b} =",
            "Compute {a} - {b}.",
            "How much is {a} - {b}?",
            "Calculate {a} minus {b}.",
            "What's {a}-{b}?",
            "Take {b} away from {a}.",
            "{a}-{b}",
        )
    )
    rest = a - b // 10 * 10
    thought = f"{a} - {b // 10 * 10} = {rest}. {rest} - {b % 10} = {a - b}."
    return SampleTurn(form.format(a=a, b=b), str(a - b), thought)


def larger(lx: Lexicon) -> SampleTurn:
    a, b = lx.pair("or", 0, 999 if lx.chance(0.4) else 99)
    while a == b:
        a, b = lx.pair("or", 0, 99)
    adjective, pick = lx.one((("larger", max), ("smaller", min), ("bigger", max), ("greater", max)))
    form = lx.one(
        ("Which is {x}, {a} or {b}?", "Which number is {x}: {a} or {b}?", "What is {x}, {a} or {b}?")
    )
    answer = str(pick(a, b))
    return SampleTurn(form.format(x=adjective, a=a, b=b), answer, f"I compare {a} and {b}.")


def _listed(lx: Lexicon, low: int = 2, high: int = 6) -> tuple[list[str], str, str]:
    words = lx.words(low, high)
    joiner = lx.one((" ", ", ", " "))
    return words, joiner, joiner.join(words)


def reverse(lx: Lexicon) -> SampleTurn:
    words, joiner, text = _listed(lx)
    form = lx.one(
        (
            "Reverse the order of these words: {t}",
            "Reverse the words: {t}",
            "Write these words backwards: {t}",
            "Put these words in reverse order: {t}",
            "Reverse this list: {t}",
            "Reverse: {t}",
        )
    )
    return SampleTurn(
        _polite(lx, form.format(t=text)), joiner.join(reversed(words)), "I start with the last word."
    )


def nth_word(lx: Lexicon) -> SampleTurn:
    words, _, text = _listed(lx)
    if lx.chance(0.6):
        which, answer = lx.one((("first", words[0]), ("last", words[-1])))
    else:
        i = lx.rng.randrange(len(words))
        which, answer = ORDINALS[i], words[i]
    form = lx.one(
        (
            "What is the {w} word: {t}",
            "What is the {w} word of: {t}",
            'What is the {w} word in "{t}"?',
            "Give me the {w} word of this list: {t}",
            "Say the {w} word: {t}",
            "Name the {w} word: {t}",
            "Which word is {w}: {t}",
        )
    )
    return SampleTurn(form.format(w=which, t=text), answer, f"I look for the {which} word.")


def lookup(lx: Lexicon) -> SampleTurn:
    """Ask for the value that belongs to a key."""
    keys = lx.words(2, 6, invented=0.6)
    values = [lx.digits(1, 4) if lx.chance(0.3) else lx.word(0.6) for _ in keys]
    i = lx.rng.randrange(len(keys))
    style = lx.rng.randrange(4)
    if style == 0:
        text = ", ".join(f"{k} = {v}" for k, v in zip(keys, values, strict=True))
    elif style == 1:
        text = " ".join(f"The {k} is {v}." for k, v in zip(keys, values, strict=True))
    elif style == 2:
        text = "\n".join(f"{k}: {v}" for k, v in zip(keys, values, strict=True))
    else:
        text = "{" + ", ".join(f'"{k}": "{v}"' for k, v in zip(keys, values, strict=True)) + "}"
    question = lx.one(
        (
            f"What is {keys[i]}?",
            f"What is the {keys[i]}?",
            f"Give me {keys[i]}.",
            f"Which value has {keys[i]}?",
        )
    )
    return SampleTurn(
        lx.one((f"{text}\n{question}", f"{text} {question}")), values[i], f"I look for {keys[i]}."
    )


SKILLS: dict[str, tuple[Callable[[Lexicon], SampleTurn], float]] = {
    "repeat": (repeat, 9),
    "repeat_times": (repeat_times, 8),
    "count": (count, 9),
    "upper": (upper, 22),
    "spell": (spell, 8),
    "digits_to_words": (digits_to_words, 9),
    "words_to_digits": (words_to_digits, 5),
    "add": (add, 16),
    "subtract": (subtract, 17),
    "larger": (larger, 5),
    "reverse": (reverse, 9),
    "nth_word": (nth_word, 11),
    "lookup": (lookup, 9),
}
