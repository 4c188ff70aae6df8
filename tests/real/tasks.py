"""Ask a published model small questions of five kinds with default options, and count the right answers.

They show what a model of a size is good for; they are no benchmark that others publish.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from own_server.launch import DidNotStart, launched_server

from .files import Model
from .http import get, post
from .vocabulary import Verdict

__all__ = ["solve"]

_LONGEST = 64
"""Tokens of an answer."""
_SEEDS = (1, 2)
"""Each question is asked with both, because models sample by default."""


class Task(NamedTuple):
    """A question with the words of its right answer."""

    question: str
    right: tuple[str, ...]


_FACTS = (
    Task("The capital of France is", ("Paris",)),
    Task("The chemical symbol of gold is", ("Au",)),
    Task("The largest planet of the solar system is", ("Jupiter",)),
    Task("Romeo and Juliet was written by", ("Shakespeare",)),
    Task("The number of days in a week is", ("seven", "7")),
    Task("Water freezes at a temperature in degrees Celsius of", ("0", "zero")),
    Task("The ocean between Europe and America is called the", ("Atlantic",)),
    Task("The language that most people in Brazil speak is", ("Portuguese",)),
)
_SUMS = tuple(
    Task(f"{one} + {other} =", (str(one + other),))
    for one, other in ((2, 3), (7, 5), (17, 25), (40, 2), (123, 456), (99, 1), (350, 275), (64, 64))
)
_TEXT = "Dr. Chen moved the review from Monday to Thursday at 15:00. It is in room 4 and takes 90 minutes."
_READING = (
    Task("On which day is the review now?", ("Thursday",)),
    Task("In which room is it?", ("4", "four")),
    Task("Who moved the review?", ("Chen",)),
    Task("At what time does it begin?", ("15:00", "3 pm", "3 p.m.", "15")),
    Task("How many minutes does it take?", ("90", "ninety")),
    Task("On which day was it planned before?", ("Monday",)),
)
_PEOPLE = (("Ada Lovelace", 1815), ("Alan Turing", 1912), ("Grace Hopper", 1906), ("Marie Curie", 1867))
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "year": {"type": "integer"}},
    "required": ["name", "year"],
    "additionalProperties": False,
}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
        },
    }
    for name, description, key in (
        ("get_weather", "Get the weather of a city now.", "city"),
        ("search_files", "Search the files of the project for a word.", "word"),
        ("send_message", "Send a message to a person.", "to"),
    )
]
_CALLS = (
    ("What is the weather in Oslo?", "get_weather", "Oslo"),
    ("Is it raining in Lima?", "get_weather", "Lima"),
    ("Search the files for the word budget.", "search_files", "budget"),
    ("Which files have the word invoice?", "search_files", "invoice"),
    ("Send a message to Maria.", "send_message", "Maria"),
    ("Please message Tom.", "send_message", "Tom"),
)


class _Asker:
    """Ask a server, by chats or for a base model by texts to continue."""

    def __init__(self, base: str, *, talks: bool) -> None:
        self._base, self._talks = base, talks
        self._name = get(f"{base}/models")["data"][0]["id"]
        self.tokens, self.seconds = 0, 0.0

    def message(self, question: str, seed: int, **more: Any) -> dict[str, Any]:
        """Return the message that answers a question."""
        body = {"model": self._name, "seed": seed, "max_tokens": _LONGEST, **more}
        body |= {"messages": [{"role": "user", "content": question}]} if self._talks else {"prompt": question}
        began = time.monotonic()
        found = post(f"{self._base}/{'chat/completions' if self._talks else 'completions'}", body)
        self.seconds += time.monotonic() - began
        self.tokens += found["usage"]["completion_tokens"]
        choice = found["choices"][0]
        message: dict[str, Any] = choice["message"] if self._talks else {"content": choice["text"]}
        return message

    def answered(self, task: Task, seed: int, before: str = "") -> bool:
        """Return whether the answer has a right word; of a base model its first line counts."""
        if self._talks:
            text = self.message(f"{before}{task.question}\nAnswer in as few words as you can.", seed)
        else:
            text = self.message(f"{before}{task.question}", seed, stop=["\n"])
        pattern = "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in task.right)
        return re.search(pattern, text["content"] or "", re.I) is not None

    def extracted(self, name: str, year: int, seed: int) -> bool:
        """Return whether a name and a year come back in the form of a schema."""
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON, "strict": True}}
        found = self.message(f"{name} was born in {year}. Write it as JSON.", seed, response_format=form)
        try:
            return bool(json.loads(found["content"]) == {"name": name, "year": year})
        except ValueError:  # Cut at the limit.
            return False

    def called(self, question: str, name: str, value: str, seed: int) -> bool:
        """Return whether the first call names the right tool and value."""
        calls = self.message(question, seed, tools=_TOOLS).get("tool_calls") or [{"function": {}}]
        first = calls[0]["function"]
        return first.get("name") == name and value.lower() in first["arguments"].lower()


def solve(model: Model, file: Path) -> Verdict:
    """Start the server with default options, and count the right answers of each kind."""
    try:
        with launched_server(None, "--model", str(file)) as base:
            ask = _Asker(base, talks=model.talks)
            question = f"{_TEXT}\n\n" if model.talks else f"{_TEXT}\nQuestion: "
            reading = _READING if model.talks else [_as_text(each) for each in _READING]
            row = {
                "facts": _share(lambda seed: (ask.answered(each, seed) for each in _FACTS)),
                "sums": _share(lambda seed: (ask.answered(each, seed) for each in _SUMS)),
                "reading": _share(lambda seed: (ask.answered(each, seed, question) for each in reading)),
            }
            if model.talks:
                row["JSON by a schema"] = _share(
                    lambda seed: (ask.extracted(*each, seed) for each in _PEOPLE)
                )
                row["calls of tools"] = _share(lambda seed: (ask.called(*each, seed) for each in _CALLS))
    except DidNotStart:
        return Verdict("the server did not start", ["the server did not start"])
    except urllib.error.HTTPError as error:
        return Verdict("refused", [f"{error.code}: {error.read().decode(errors='replace')[:300]}"])
    counts = ", ".join(f"{name} {value}" for name, value in row.items())
    return Verdict(f"{counts}; {ask.tokens} tokens in {ask.seconds:.0f} s", [], row=row)


def _as_text(task: Task) -> Task:
    return Task(f"{task.question}\nAnswer:", task.right)


def _share(of_seed: Callable[[int], Iterable[bool]]) -> str:
    found = [right for seed in _SEEDS for right in of_seed(seed)]
    return f"{sum(found)} of {len(found)}"
