"""Hold clients of others against every legal answer, and write what breaks them (`nox -s client-cases`).

Each has a program in `judged/`, which takes the cases of `plumbline client --once`. `-- --write` writes the page of the
docs; names choose some clients.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from clients.registry import CLIENTS, Client
from clients.run import ENVIRONMENTS, install
from plumbline_conformance.variations.cases import CASES
from plumbline_conformance.variations.client_trial import ClientOutcome, markdown

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "client-cases.md"
NAMES = (
    "openai-python",
    "openai-node",
    "ai-sdk",
    "langchain",
    "litellm",
    "openai-agents",
    "anthropic-python",
)
_HEAD = """# Clients under legal answers

<!-- Written by `nox -s client-cases -- --write`. Do not edit. -->

`plumbline client` answers a client in {count} ways that the formats and OpenAI's schemas allow
([guide](../guides/client.md)). Each client here has a program that reads texts and calls of a tool, whole and streamed,
over the APIs that it has, and compares them with the script. `breaks` means that it raised an error or read something
else; in the last three cases it must raise one.

"""


def main() -> int:
    """Run the clients; return 1 if one could not be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"of {', '.join(NAMES)}")
    parser.add_argument("--write", action="store_true", help="write docs/reference/client-cases.md")
    arguments = parser.parse_args()
    found: list[tuple[Client, list[ClientOutcome]]] = []
    for client in CLIENTS:
        if client.name in arguments.names and client.name in NAMES:
            print(f"-- {client.name}", flush=True)
            outcomes = _outcomes(client)
            if outcomes is None:
                return 1
            found.append((client, outcomes))
    if arguments.write:
        PAGE.write_text(page(found), "utf-8")
    return 0


def _outcomes(client: Client) -> list[ClientOutcome] | None:
    folder = (ENVIRONMENTS / client.name).absolute()
    install(client, folder)
    for file in (HERE / "judged").iterdir():
        if file.suffix == ".mjs":
            shutil.copy2(file, folder)  # Node looks for packages beside the program.
    python = [str(folder / "bin" / "python"), str(HERE / "judged" / client.program)]
    program = python if client.is_python else ["node", str(folder / client.program)]
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "outcomes.json"
        options = ["--once", "--timeout", "600", "--json", str(file)]
        variables = {
            "PYTHONPATH": "",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
        command = [str(Path(sys.executable).parent / "plumbline"), "client", *options]
        # The program's own variables are set by `env`, because `plumbline` needs its own path.
        given = [f"{key}={value}" for key, value in variables.items()]
        subprocess.run([*command, "env", *given, *program], check=False)
        return msgspec.json.decode(file.read_bytes(), type=list[ClientOutcome]) if file.exists() else None


def page(found: list[tuple[Client, list[ClientOutcome]]]) -> str:
    """Return the page: the table, and the first words of each error."""
    lines = [
        _HEAD.format(count=len(CASES)) + markdown([(client.name, outcomes) for client, outcomes in found])
    ]
    for client, outcomes in found:
        lines.append(f"\n## {client.name}\n\n`{' '.join(client.packages)}`\n")
        for one in outcomes:
            if one.error:
                words = " ".join(one.error.replace("`", "'").split())[:160]
                lines.append(f"- {one.name} ({one.allowed_by}): `{words}`")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
