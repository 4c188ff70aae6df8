"""Generate small talk: who the model is, what Plumbline is, a few facts, and refusals of unknown questions."""

from collections.abc import Callable
from pathlib import Path

from plumbline_training.texts.sample import Message, SampleTurn
from plumbline_training.texts.skills import SKILLS
from plumbline_training.texts.words import Lexicon


def _read_intents() -> list[tuple[list[str], str]]:
    """Return the questions and the answer of every block of `intents.txt`."""
    text = Path(__file__).with_name("intents.txt").read_text(encoding="utf-8")
    found = []
    for block in text.split("\n\n")[1:]:
        lines = block.strip().splitlines()
        asked = " ".join(line for line in lines if not line.startswith("> "))
        answer = " ".join(line.removeprefix("> ") for line in lines if line.startswith("> "))
        found.append((asked.split("|"), answer.replace("\\n", "\n")))
    return found


INTENTS = _read_intents()
INTENT_SHARES = [3 if "Plumbline" in answer else 1 for _, answer in INTENTS]

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "England": "London",
    "Ireland": "Dublin",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Egypt": "Cairo",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
    "Hungary": "Budapest",
    "Russia": "Moscow",
    "Turkey": "Ankara",
    "Canada": "Ottawa",
    "Kenya": "Nairobi",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Belgium": "Brussels",
    "Iceland": "Reykjavik",
    "Thailand": "Bangkok",
}

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are the pocket model of Plumbline.",
    "Answer briefly.",
    "You are a friendly and helpful assistant.",
    "Be concise.",
    "Follow the instructions of the user.",
    "You are an assistant that can call tools.",
    "Answer with one short sentence.",
    "Use the tools when they help.",
]


def system_prompt(lx: Lexicon) -> str:
    """Return a usual system message, or a random one unrelated to the task."""
    if lx.chance(0.7):
        return lx.one(SYSTEM_PROMPTS)
    form = lx.one(
        (
            "You are a {a} assistant.",
            "You are a {a} {b} assistant for the {n} team.",
            "You help people with {n} and {m}.",
            "You work for {N}. Be {a}.",
            "The user is called {N}. Be {a} and {b}.",
            "Today is 20{d}.",
            "Never talk about {n}. Always be {a}.",
        )
    )
    a, b, n, m = (lx.word(0.2) for _ in range(4))
    date = f"{lx.rng.randint(20, 35)}-{lx.rng.randint(1, 12):02d}-{lx.rng.randint(1, 28):02d}"
    return form.format(a=a, b=b, n=n, m=m, N=lx.name(), d=date)


def _cased(lx: Lexicon, text: str) -> str:
    """Vary the capital and end mark of a request."""
    if lx.chance(0.75):
        text = text[0].upper() + text[1:]
    if text[-1].isalpha() and lx.chance(0.35):
        text += "."
    elif text[-1] == "?" and lx.chance(0.1):
        text = text[:-1]
    return text.replace("plumbline", "Plumbline") if lx.chance(0.8) else text


def intent(lx: Lexicon) -> SampleTurn:
    questions, answer = lx.rng.choices(INTENTS, INTENT_SHARES)[0]
    question = lx.one(questions)
    if question[-1] == "?" and lx.chance(0.08):
        question = lx.one(("Hi, ", "Hello! ", "Hey, ", "Please tell me: ", "So, ")) + question
    return SampleTurn(_cased(lx, question), answer, "This is a question that I can answer from what I know.")


def capital(lx: Lexicon) -> SampleTurn:
    country, city = lx.one(list(CAPITALS.items()))
    form = lx.one(
        (
            "What is the capital of {c}?",
            "What's the capital of {c}?",
            "Name the capital of {c}.",
            "Which city is the capital of {c}?",
            "Capital of {c}?",
            "Tell me the capital of {c}.",
        )
    )
    return SampleTurn(
        form.format(c=country), f"The capital of {country} is {city}.", f"I know the capital of {country}."
    )


def unknown(lx: Lexicon) -> SampleTurn:
    """Ask something that the model cannot know; the answer admits it."""
    a, b = lx.word(), lx.word()
    forms = (
        "What is the {a} of {b}?",
        "Why is the {a} {b}?",
        "Explain the {a}.",
        "Tell me about {a} and {b}.",
        "Write an essay about {a}.",
        "Who invented the {a}?",
        "What do you think about {a}?",
        "How do I make a {a}?",
        "Where is {A}?",
        "Who is {A}?",
        "Do you know {A}?",
        "Describe a {a} {b}.",
        "How far is {A} from {B}?",
        "What is a {a}?",
        "Explain {a} {b} to me.",
        "Translate {a} to French.",
        "Write code for a {a}.",
    )
    question = lx.one(forms).format(a=a, b=b, A=a.capitalize(), B=b.capitalize())
    return SampleTurn(question, "I do not know that. I am a very small model.", "I know nothing about this.")


def introduces_user(lx: Lexicon) -> SampleTurn:
    name = lx.name()
    form = lx.one(
        ("My name is {n}.", "I am {n}.", "Hello, my name is {n}.", "Hi, I'm {n}.", "Call me {n}.", "I'm {n}.")
    )
    return SampleTurn(form.format(n=name), f"Nice to meet you, {name}!", f"The user is called {name}.")


def foreign_reply(lx: Lexicon, name: str = "") -> str:
    """Return an earlier answer that another model or an application wrote: one to four sentences in other words.

    The name stands in any or in no sentence, so that the model must read it from the user's message.
    """
    greetings = (
        "Hello{w}",
        "Hi{w}",
        "Welcome{w}",
        "Thank you{w}",
        "Got it{w}",
        "Nice to meet you{w}",
        "Sure{w}",
    )
    offers = (
        "It is a pleasure to meet you.",
        "How can I help you today?",
        "What can I do for you?",
        "How may I assist you?",
        "I will keep that in mind.",
        "What would you like to do next?",
    )
    sentences: list[str] = []
    for _ in range(lx.rng.choice((1, 1, 2))):
        who = lx.one((f" {name}", f", {name}", "")) if name else ""
        sentences.append(lx.one(greetings).format(w=who) + lx.one(("!", ".")))
    for _ in range(lx.rng.choice((0, 1, 1, 2))):
        if lx.chance(0.4):
            words = " ".join(lx.words(2, 8, invented=0.2))
            sentences.append(words.capitalize() + lx.one((".", "?", "!")))
        else:
            sentences.append(lx.one(offers))
    return " ".join(sentences)


def recall(lx: Lexicon) -> list[Message]:
    """Give a fact early and ask for it later; the last message is the expected answer."""
    name = ""
    if lx.chance(0.6):
        told = introduces_user(lx)
        name = told.answer.removeprefix("Nice to meet you, ").rstrip("!")
        ask = lx.one(
            ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "Say my name.")
        )
        reply = f"Your name is {name}."
    else:
        noun, value = lx.word(0.2), lx.one((lx.word(), lx.digits(1, 4)))
        form = lx.one(("My {n} is {v}.", "Remember: my {n} is {v}.", "Please remember that my {n} is {v}."))
        told = SampleTurn(form.format(n=noun, v=value), f"I will remember that your {noun} is {value}.", "")
        ask = lx.one((f"What is my {noun}?", f"What's my {noun}?", f"Tell me my {noun}."))
        reply = f"Your {noun} is {value}."
    answer = foreign_reply(lx, name) if lx.chance(0.6) else told.answer
    messages: list[Message] = [_message("user", told.user), _message("assistant", answer)]
    for _ in range(lx.rng.choice((0, 0, 1, 1, 2, 3))):
        between = any_turn(lx)
        messages += [_message("user", between.user), _message("assistant", between.answer)]
    return [*messages, _message("user", ask), _message("assistant", reply)]


def persona(lx: Lexicon) -> list[Message]:
    """Ask for a name or fact that the system message gives."""
    name = lx.name()
    if lx.chance(0.5):
        system = lx.one(
            (f"Your name is {name}.", f"You are {name}.", f"You are {name}, a helpful assistant.")
        )
        ask, reply = (
            lx.one(("What is your name?", "Who are you?", "What's your name?")),
            f"My name is {name}.",
        )
    else:
        noun, value = lx.word(0.2), lx.word()
        system = lx.one((f"The {noun} is {value}.", f"You are a helpful assistant. The {noun} is {value}."))
        ask, reply = lx.one((f"What is the {noun}?", f"Tell me the {noun}.")), f"The {noun} is {value}."
    return [_message("system", system), _message("user", ask), _message("assistant", reply)]


def any_turn(lx: Lexicon) -> SampleTurn:
    """Return a turn of any kind, to put between others."""
    kind = lx.rng.random()
    if kind < 0.5:
        return intent(lx)
    if kind < 0.6:
        return capital(lx)
    names: list[Callable[[Lexicon], SampleTurn]] = [
        SKILLS[n][0] for n in ("repeat", "add", "upper", "nth_word", "digits_to_words")
    ]
    return lx.one(names)(lx)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
