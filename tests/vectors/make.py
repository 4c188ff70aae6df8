"""Write the vectors of `conformance/vectors`: `python tests/vectors/make.py`; `--check` fails if they differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "conformance" / "vectors"
# The script runs in a plain checkout as well; `tests` has the generators of the laws.
sys.path[:0] = [str(ROOT / name) for name in ("tests", "conformance", "kernels", "src")]

from vectors import dialogues, parsers, streams, structured  # noqa: E402


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file."""
    yield "tools.json", _text(parsers.TOOLS)
    for name in parsers.FILES:
        yield f"parsers/{name}.json", _text(parsers.vectors_of(name))
    for suite in (dialogues, streams, structured):
        for name, file in suite.files():
            yield f"{suite.__name__.rpartition('.')[2]}/{name}.json", _text(file)


def _text(file: dict[str, Any]) -> str:
    """Return JSON with one line for each case, or each other member."""
    members = []
    for key, value in file.items():
        if key == "cases":
            rows = ",\n".join(_compact(case) for case in value)
            members.append(f'"cases": [\n{rows}\n]')
        else:
            members.append(f"{_compact(key)}: {_compact(value)}")
    return "{" + ",\n".join(members) + "}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def main() -> int:
    """Write the files, or compare them; return 1 if one differs."""
    made = {FOLDER / name: text for name, text in files()}
    stale = [path for path in FOLDER.glob("*/*.json") if path not in made]
    if "--check" in sys.argv:
        differ = [
            path for path, text in made.items() if not path.is_file() or path.read_text("utf-8") != text
        ]
        for path in [*differ, *stale]:
            print(f"{path.relative_to(ROOT)} differs from what tests/vectors/make.py writes")
        return int(bool(differ or stale))
    for path in stale:
        path.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
