"""Read messages from a terminal, show answers as they arrive, and run the commands that begin with a slash."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import msgspec

from plumbline.chat.conversation import ChatSession, Piece, RefusedError

__all__ = ["Terminal", "field_value"]

_HELP = '''\
  /set FIELD VALUE   set a field of the requests: /set temperature 0.2, /set seed 7, /set system You are terse.
  /unset FIELD       leave a field out again
  /show              show the fields, and the usage of the last answer
  /again             answer the last question anew
  /clear             forget the conversation
  /save FILE         write the conversation to a file
  /load FILE         go on with a conversation of a file
  /bye               end; so does Ctrl-D
  """                begin and end a text of several lines
Ctrl-C stops an answer. The path of a picture in a message shows it to the model.'''
_NO_RESULT = "The user gave no result."
_HISTORY = 1000
"""Lines that are remembered from one conversation to the next."""
_LONGEST = 64 * 1024**2
"""Bytes of a saved conversation."""


class _Saved(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A saved conversation."""

    model: str = ""
    fields: dict[str, Any] = {}
    messages: list[dict[str, Any]]


class _Typed(NamedTuple):
    """A text that was typed."""

    text: str
    quoted: bool = False
    """Whether it stood between three quotes."""

    @property
    def is_command(self) -> bool:
        """Whether it is one line that begins with a command: `/set …`, but not `/api/chat fails` or `/tmp/a.png`."""
        if self.quoted or "\n" in self.text or not self.text.startswith("/"):
            return False
        word = self.text.split()[0]
        return "/" not in word[1:] and not Path(word).exists()


class Terminal:
    """A conversation at a terminal.

    Args:
        conversation: the conversation.
        client: a client of the server that answers.
    """

    def __init__(self, conversation: ChatSession, client: httpx2.Client) -> None:
        self._conversation = conversation
        self._client = client
        self._ignored = ""
        self._dim = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def ask_once(self, prompt: str) -> int:
        """Ask one question, write its answer to standard output, and return the exit status."""
        return 0 if self._send(prompt) else 1

    def talk(self) -> int:
        """Talk until the end of the input."""
        print(f"Talking to {self._conversation.model}. /help shows what can be typed; Ctrl-D ends.")
        with _history():
            while (typed := _read_input(">>> ")) is not None:
                if typed.is_command:
                    if self._run_command(typed.text[1:].strip()):
                        break
                elif typed.text.strip():
                    self._send(typed.text)
        return 0

    def _send(self, text: str) -> bool:
        """Add a message of the user and show its answer; return whether that succeeded."""
        try:
            self._conversation.say(text)
        except RefusedError as error:
            return _report_error(error)
        return self._converse()

    def _converse(self) -> bool:
        """Show an answer, and ask for the results of its calls until it has none."""
        while self._show_answer():
            calls = self._conversation.calls()
            for call in calls:
                function = call["function"]
                print(f"→ {function['name']}({function['arguments']})")
                if not sys.stdin.isatty():
                    continue
                result = _read_input("  its result: ")
                self._conversation.result(call, result.text if result and result.text else _NO_RESULT)
            if not calls or not sys.stdin.isatty():
                return True
        return False

    def _show_answer(self) -> bool:
        """Show an answer as it arrives. Ctrl-C stops it, and the conversation keeps what arrived."""
        answers = self._conversation.answers(self._client)
        shown = ""
        try:
            for piece in answers:
                shown = self._print_piece(piece, shown)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
            return False
        except RefusedError as error:
            return _report_error(error)
        finally:
            answers.close()
            if shown:
                self._style("")
                print(flush=True)
        self._show_ignored()
        return True

    def _show_ignored(self) -> None:
        """Name the fields that the server does not know, once: `/set temprature 0` has no effect."""
        ignored = self._conversation.ignored
        if ignored and ignored != self._ignored:
            print(f"The server does not know: {printable(ignored)}", file=sys.stderr)
        self._ignored = ignored

    def _print_piece(self, piece: Piece, before: str) -> str:
        """Print a piece after one of the kind `before`; return its kind."""
        if piece.kind != before:
            if before:
                print("\n")
            self._style(piece.kind)
        print(printable(piece.text), end="", flush=True)
        return piece.kind

    def _style(self, kind: str) -> None:
        """Write thinking dimly."""
        if self._dim:
            print("\x1b[2m" if kind == "thinking" else "\x1b[0m", end="")

    def _run_command(self, text: str) -> bool:
        """Run a command; return whether it ends the conversation."""
        command, _, rest = text.partition(" ")
        talk = self._conversation
        match command, rest.strip():
            case (("bye" | "exit" | "quit"), _):
                return True
            case "clear", "":
                talk.clear()
            case "again", "":
                self._again()
            case "show", "":
                print(
                    json.dumps(
                        {"model": talk.model, "system": talk.system, **talk.fields},
                        ensure_ascii=False,
                        indent=2,
                    )
                )
                print(f"messages: {len(talk.messages)}; usage of the last answer: {json.dumps(talk.usage)}")
            case "set", setting if " " in setting:
                name, _, value = setting.partition(" ")
                if name == "system":
                    talk.system = value.strip()
                else:
                    talk.fields[name] = field_value(value.strip())
            case "unset", "system":
                talk.system = ""
            case "unset", name if name:
                talk.fields.pop(name, None)
            case (("save" | "load"), name) if name:
                self._file(command, Path(name).expanduser())
            case "help", _:
                print(_HELP)
            case _:
                print(f"There is no /{printable(text)}; /help shows all.", file=sys.stderr)
        return False

    def _again(self) -> None:
        messages = self._conversation.messages
        kept = next((at for at in range(len(messages), 0, -1) if messages[at - 1]["role"] == "user"), 0)
        if kept:
            del messages[kept:]
            self._converse()

    def _file(self, command: str, path: Path) -> None:
        talk = self._conversation
        try:
            if command == "save":
                saved = _Saved(model=talk.model, fields=talk.fields, messages=talk.messages)
                path.write_bytes(msgspec.json.format(msgspec.json.encode(saved)))
                print(f"Saved {len(talk.messages)} messages to {path}.")
                return
            with path.open("rb") as file:
                found = msgspec.json.decode(file.read(_LONGEST), type=_Saved)
        except OSError as error:
            print(f"{path}: {error.strerror}", file=sys.stderr)
        except (msgspec.DecodeError, RecursionError) as error:
            print(f"{path} has no conversation: {error}", file=sys.stderr)
        else:
            talk.fields, talk.messages = found.fields, found.messages
            print(f"Loaded {len(talk.messages)} messages of {path}.")


def field_value(text: str) -> Any:
    """Parse a text as JSON, or return the text if it is not JSON.

    >>> field_value("0.2"), field_value("high"), field_value('{"type": "json_object"}')
    (0.2, 'high', {'type': 'json_object'})
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def printable(text: str) -> str:
    """Replace control characters in text of a model, which could change the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def _report_error(error: Exception) -> bool:
    print(f"plumbline: {printable(str(error))}", file=sys.stderr)
    return False


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Let the arrow keys edit and repeat what was typed, also from one conversation to the next."""
    try:
        import readline
    except ImportError:  # Windows has none.
        yield
        return
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(home, "plumbline", "run_history")
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            readline.write_history_file(path)


def _read_input(prompt: str) -> _Typed | None:
    """Read a line, or several between three quotes. Return "" at Ctrl-C and None at the end of the input."""
    try:
        line = input(prompt)
        if not line.startswith('"""'):
            return _Typed(line)
        lines = [line[3:]]
        while not lines[-1].rstrip().endswith('"""'):
            lines.append(input("... "))
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print()
        return _Typed("")
    lines[-1] = lines[-1].rstrip()[:-3]
    return _Typed("\n".join(lines).strip("\n"), quoted=True)
