"""What README.md, the tutorial and guides show is what happens.

A fenced block whose info string ends with the word `example` is run, with a server of the pocket model behind it:

    ```console example        lines after `$ ` are commands (and what continues them after a backslash)
    ```bash example           the whole block is one script
    ```python example         the whole block is one program

If the next fenced block is a

    ```text output            (or ```json output)

the example must print just that. The word `fails` after `example` says that the commands end with an error; what they
print on both streams is compared then. Other blocks are left alone, so `nox -s serve` can be shown as well.

Examples write the default address, `127.0.0.1:8000` or `localhost:8000`; the test puts its own port there. Two outputs
are the same if they are equal after ids, times and hexadecimal fingerprints have become placeholders; where JSON is
printed, white space does not count, so that it can be shown in lines. `…` in an output stands for anything. Sampling
is not repeatable unless the example says `"temperature": 0`, so an example says that or writes `…` for the words.
"""

from __future__ import annotations

import codeop
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TUTORIAL = sorted((ROOT / "docs" / "tutorial").glob("[1-9]*.md"))
GUIDES = [
    *TUTORIAL,
    *(
        path
        for path in sorted((ROOT / "docs" / "guides").glob("*.md"))
        if re.search(r"^```\w+ example", path.read_text("utf-8"), re.MULTILINE)
    ),
]
FIRST_PAGES = {path.name for path in (README, *TUTORIAL)}
"""Whose examples are for the prompt of Python; those of guides may be files."""
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
PLACEHOLDERS = [
    (
        re.compile(r"\b(chatcmpl|cmpl|resp|msg|req|rs|fc|call|fp)([-_])(?:[0-9a-f]+|…)(?![0-9a-zA-Z])"),
        r"\1\2ID",
    ),
    (re.compile(r'("(?:created|created_at|completed_at)":\s*)(?:\d+|"…")'), r"\g<1>0"),
    (re.compile(r"\b(created(?:_at)?=)\d+"), r"\g<1>0"),
    (re.compile(r"\b(127\.0\.0\.1|localhost):\d+"), r"\1:PORT"),
    (re.compile(r"--port \d+"), "--port PORT"),
]


@dataclass(frozen=True)
class Example:
    """A block that is run."""

    language: str
    code: str
    output: str | None
    line: int
    page: str = "README.md"
    fails: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def shown() -> list[Example]:
    """The examples of all pages."""
    return [one for path in (README, *GUIDES) for one in examples(path.read_text("utf-8"), path.name)]


def examples(text: str, page: str = "README.md") -> list[Example]:
    """The marked blocks of a document."""
    blocks = [
        (match[1].split(), match[2], text.count("\n", 0, match.start()) + 1) for match in FENCE.finditer(text)
    ]
    found = []
    for number, (words, code, line) in enumerate(blocks):
        if words[1:] not in (["example"], ["example", "fails"]):
            continue
        following = blocks[number + 1] if number + 1 < len(blocks) else ([], "", 0)
        output = following[1] if following[0][1:] == ["output"] else None
        found.append(Example(words[0], code, output, line, page, "fails" in words))
    return found


def script(example: Example) -> list[str]:
    """The command that runs an example."""
    if example.language == "python":
        return [sys.executable, "-c", example.code]
    if example.language == "bash":
        return ["bash", "-euc", example.code]
    assert example.language == "console", f"line {example.line}: {example.language} cannot be run"
    commands, continued = [], False
    for line in example.code.splitlines():
        assert continued or line.startswith("$ "), f"line {example.line}: not a command: {line}"
        commands.append(line if continued else line.removeprefix("$ "))
        continued = line.endswith("\\")
    return ["bash", "-euc", "\n".join(commands)]


def comparable(text: str) -> str:
    """Without what differs from run to run."""
    text = "\n".join(line.rstrip() for line in text.strip().splitlines())
    for pattern, placeholder in PLACEHOLDERS:
        text = pattern.sub(placeholder, text)
    return text


def same(shown: str, printed: str) -> bool:
    """Equal up to placeholders; `…` in what is shown stands for anything."""
    shown, printed = comparable(shown), comparable(printed)
    if _is_json(printed):
        shown, printed = re.sub(r"\s+", "", shown), re.sub(r"\s+", "", printed)
    parts = [re.escape(part) for part in shown.split("…")]
    return re.fullmatch(".*?".join(parts), printed, re.DOTALL) is not None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def run(example: Example, port: int) -> str:
    """Run an example; returns what it printed."""
    code = re.sub(r"\b(127\.0\.0\.1|localhost):8000\b", f"127.0.0.1:{port}", example.code)
    code = code.replace("--port 8000", f"--port {port}")
    command = script(replace(example, code=code))
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "PATH": os.pathsep.join(folders), "PYTHONUTF8": "1"},
    )
    assert (ended.returncode != 0) is example.fails, f"{example}: {ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr if example.fails else ended.stdout


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Run a server with the pocket model in another process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "plumbline", "serve", "--device", "cpu", "--port", str(found)],
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 60
        while not _healthy(found):
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.communicate()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("example", shown(), ids=str)
def test_an_example_prints_the_output_that_is_shown(example: Example, port: int) -> None:
    if "curl" in example.code and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    printed = run(example, port)

    if example.output is not None:
        assert same(example.output, printed), f"{example} printed:\n{printed}"


def test_every_page_has_examples() -> None:
    assert {example.page for example in shown()} == {path.name for path in (README, *GUIDES)}
    assert len(TUTORIAL) == 8


def test_no_block_of_a_guide_is_left_untried() -> None:
    for path in (README, *TUTORIAL, *(ROOT / "docs" / "guides").glob("*.md")):
        for info, _ in FENCE.findall(path.read_text("utf-8")):
            words = info.split()
            assert words[:1] not in (["python"], ["console"], ["bash"]) or words[1:2] == ["example"], path


@pytest.mark.parametrize("example", [one for one in shown() if one.page in FIRST_PAGES], ids=str)
def test_a_python_example_can_be_pasted_at_the_prompt(example: Example) -> None:
    if example.language == "python":
        assert refused_at_prompt(example.code) is None


def test_the_prompt_refuses_a_statement_right_after_a_block() -> None:
    assert refused_at_prompt("for x in []:\n    pass\nprint()\n") == "print()"
    assert refused_at_prompt("for x in []:\n    pass\n\nprint()\n") is None


def refused_at_prompt(code: str) -> str | None:
    """Return the first line that `python` refuses, if the lines are typed one by one.

    There a block ends with an empty line. Python 3.13 reads what is pasted as a whole, 3.11 of Debian 12 does not.
    """
    statement: list[str] = []
    for line in [*code.splitlines(), ""]:
        statement.append(line)
        try:
            if codeop.compile_command("\n".join(statement)) is not None:
                statement = []
        except SyntaxError:
            return line
    return None


def test_pip_is_that_of_the_environment() -> None:
    """Debian has no `pip`, and the first steps have `.venv`."""
    for path in TUTORIAL:
        assert not re.search(r"(?<!\.venv/bin/)\bpip install", path.read_text("utf-8")), path


DOCUMENT = """
```
nox -s serve
```

```console example
$ echo one \\
  two
$ echo '{"id": "chatcmpl-0a", "created": 12}'
```
prints
```text output
one two
…"chatcmpl-…"…
```

```python example
print("127.0.0.1:8000")
```
"""


def test_marked_blocks_are_found_with_their_output() -> None:
    first, second = examples(DOCUMENT)

    assert (first.language, second.language) == ("console", "python")
    assert first.output == 'one two\n…"chatcmpl-…"…\n'
    assert second.output is None
    assert DOCUMENT.splitlines()[first.line - 1] == "```console example"


def test_examples_are_run_with_the_port_of_the_test() -> None:
    first, second = examples(DOCUMENT)

    assert same(first.output or "", run(first, 1))
    assert run(second, 1234) == "127.0.0.1:1234\n"


def test_an_example_that_fails_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"README\.md:7"):
        run(Example("bash", "false\necho later", None, 7), 1)


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ('{"id": "chatcmpl-1f", "created": 1}', '{"id":"chatcmpl-2e","created":22}', True),
        ('{"id": "resp_…", "created_at": 1}', '{"id":"resp_9c","created_at":22}', True),
        ('{"text": "a"}', '{"text":"b"}', False),
        ('{"id": "cmpl-…",\n "text": "a b"…', '{"id":"cmpl-2e","text":"a b","n":1}', True),
        ('{"text": "…"}', '{"text":"anything"}', True),
        ("Serving on http://127.0.0.1:8000/v1", "Serving on http://127.0.0.1:4711/v1\n", True),
        ("one\n…\nthree", "one\n2\n2.5\nthree", True),
        ("one", "one\ntwo", False),
    ],
)
def test_outputs_are_compared_up_to_placeholders(shown: str, printed: str, expected: bool) -> None:
    assert same(shown, printed) is expected
