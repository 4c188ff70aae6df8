"""Try the JSON Schema Test Suite: what of each schema is enforced, and whether that agrees with every instance.

    python tests/structured_output/suite.py [--folder FOLDER] [--write]

Without a folder the suite is taken from the source archive of the PyPI package `jsonschema`, which has it in `json/`.
The table is `docs/reference/json-schema-suite.md`; without `--write` it is compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "json-schema-suite.md"
DRAFT = "tests/draft2020-12"
# The script runs in a plain checkout as well.
sys.path[:0] = [str(ROOT / name) for name in ("tests", "conformance", "kernels", "src")]

from structured_output.walk import accepts, as_json_text, grammar_notes_and_reason  # noqa: E402

_MOST_ORDERS = 24


class Result(NamedTuple):
    """What a schema of the suite gave.

    Attributes:
        keyword: the name of its file.
        title: its description.
        kind: `enforced`, `annotation` or `refused`.
        reason: why it is refused, or the places that are not enforced.
        rejected: the valid instances that the grammar does not allow.
        allowed: the invalid instances that it allows.
        total: how many instances there are.
    """

    keyword: str
    title: str
    kind: str
    reason: str
    rejected: list[str]
    allowed: list[str]
    total: int


def results(folder: Path) -> Iterator[Result]:
    """Yield what each schema of the required files gives."""
    for path in sorted((folder / DRAFT).glob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            yield _result(path.stem, group)


def _result(keyword: str, group: dict[str, Any]) -> Result:
    schema, tests = group["schema"], group["tests"]
    strict, notes, reason = grammar_notes_and_reason(schema)
    grammar = strict
    if grammar is None:
        grammar, notes, reason = grammar_notes_and_reason(schema, relaxed=True)
    kind = "refused" if grammar is None else "annotation" if notes else "enforced"
    rejected: list[str] = []
    allowed: list[str] = []
    for test in tests if grammar is not None else ():
        fits = any(accepts(grammar, as_json_text(one)) for one in _orders(test["data"]))  # type: ignore[arg-type]
        if test["valid"] and not fits:
            rejected.append(as_json_text(test["data"]))
        if fits and not test["valid"]:
            allowed.append(as_json_text(test["data"]))
    reason = reason if kind == "refused" else ", ".join(notes)
    return Result(keyword, group["description"], kind, reason, rejected, allowed, len(tests))


def _orders(value: Any) -> Iterator[Any]:
    """Yield a document with its members in different orders: a grammar has one order of the listed ones."""
    if isinstance(value, dict):
        for order in itertools.islice(itertools.permutations(value), _MOST_ORDERS):
            for inner in itertools.islice(
                itertools.product(*(list(_orders(value[name])) for name in order)), _MOST_ORDERS
            ):
                yield dict(zip(order, inner, strict=True))
    elif isinstance(value, list):
        for items in itertools.islice(
            itertools.product(*(list(_orders(item)) for item in value)), _MOST_ORDERS
        ):
            yield list(items)
    else:
        yield value


def page(found: list[Result], version: str) -> str:
    """Return the page of these results."""
    kinds = ("enforced", "annotation", "refused")
    files: dict[str, dict[str, int]] = {}
    for result in found:
        row = files.setdefault(result.keyword, dict.fromkeys(kinds, 0))
        row[result.kind] += 1
    total = {kind: sum(row[kind] for row in files.values()) for kind in kinds}
    lines = [
        _HEAD.format(version=version, schemas=len(found), instances=sum(one.total for one in found)),
        "| file | enforced | annotation | refused |",
        "|---|---|---|---|",
        *(
            f"| `{name}` | {row['enforced']} | {row['annotation']} | {row['refused']} |"
            for name, row in files.items()
        ),
        f"| all | {total['enforced']} | {total['annotation']} | {total['refused']} |",
        "\n## Annotations\n",
        "Without `strict` these are accepted, and `x-plumbline-unenforced` names the places. With `strict: true` they",
        "are refused, except formats and `content…`, which the standard itself calls annotations.\n",
        "| file | schema | not enforced |",
        "|---|---|---|",
        *_rows((one.keyword, one.title, f"`{one.reason}`") for one in found if one.kind == "annotation"),
        "\n## Refusals\n",
        "| file | schema | reason |",
        "|---|---|---|",
        *_rows((one.keyword, one.title, one.reason) for one in found if one.kind == "refused"),
        "\n## Valid instances that are not allowed\n",
        "A grammar may be narrower than its schema; it is never wider, unless a place is named.\n",
        "| file | schema | instances | reason |",
        "|---|---|---|---|",
        *_rows(
            (one.keyword, one.title, ", ".join(f"`{each}`" for each in one.rejected[:3]), _why(one))
            for one in found
            if one.rejected
        ),
    ]
    return "\n".join(lines) + "\n"


_HEAD = """# JSON Schema Test Suite

The required files of draft 2020-12, as in the source archive of `jsonschema` {version}: {schemas} schemas with
{instances} instances. `nox -s schema-suite` writes this page: it
compiles each schema as `strict`, or else without, and gives the
text of every instance to the grammar. A schema is *enforced* if nothing of it is left out; then the grammar allows no
instance that is invalid. What of a schema is an *annotation* is named in the header `x-plumbline-unenforced`.
Instances are tried with their members in every order, because a grammar has one order of the listed names.
"""


def _rows(cells: Iterator[tuple[str, ...]]) -> Iterator[str]:
    for row in cells:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


def _why(result: Result) -> str:
    """Return why a grammar is narrower than its schema.

    Raises:
        ValueError: for a reason that is not known.
    """
    if result.keyword == "format":
        return "the format is enforced, as the vocabulary of format assertions allows"
    if all(re.search(r"[0-9]\.0\b", text) for text in result.rejected):
        return "an integer has one spelling, without a fraction"
    if result.keyword == "vocabulary":
        return "a vocabulary without validation is not read: every keyword is enforced"
    raise ValueError(f"{result.keyword}, {result.title!r} rejects valid instances: {result.rejected}")


def _downloaded(to: str) -> tuple[Path, str]:
    """Return the suite from the source archive of the newest `jsonschema`, and its version."""
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "jsonschema")
    subprocess.run([*command, "--dest", to, "jsonschema"], check=True)
    (archive,) = Path(to).glob("jsonschema-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(to, filter="data")
    return Path(to) / archive.name.removesuffix(".tar.gz") / "json", archive.name.split("-")[1][
        : -len(".tar.gz")
    ]


def main() -> int:
    """Write the page, or compare it; return 1 if it differs or an invalid instance is allowed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="a checkout of the suite, instead of the archive")
    parser.add_argument("--write", action="store_true", help="write the page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, version = (arguments.folder, "(a folder)") if arguments.folder else _downloaded(scratch)
        found = list(results(folder))
    wrong = [one for one in found if one.kind == "enforced" and one.allowed]
    for one in wrong:
        print(f"{one.keyword}, {one.title!r}: an enforced schema allows {one.allowed}")
    text = page(found, version)
    if arguments.write:
        PAGE.write_text(text, "utf-8")
    elif PAGE.read_text("utf-8") != text:
        print(f"{PAGE.relative_to(ROOT)} differs; --write writes it")
        return 1
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
