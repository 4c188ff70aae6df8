"""Take the cases of `plumbline client --once`, and post what a client did in each."""

import json
import os
import urllib.request
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
MODEL = os.environ["PLUMBLINE_MODEL"]
HELLO = "hi"


def tool(expected: Json) -> Json:
    """The tool of the script, as chat completions have it."""
    return {
        "type": "function",
        "function": {"name": expected["tool"], "parameters": {"type": "object", "properties": {}}},
    }


def take(uses: list[Callable[[str, Json], None]]) -> None:
    """Use the client in every case; each use gets the base URL and what must be read, and asserts it."""
    with urllib.request.urlopen(os.environ["PLUMBLINE_CASES"]) as answer:
        cases = json.load(answer)
    for case in cases:
        error = next((why for use in uses if (why := _broken(use, case))), "")
        said = json.dumps({"ok": not error, "error": error}).encode()
        urllib.request.urlopen(urllib.request.Request(case["outcome_url"], said)).close()


def _broken(use: Callable[[str, Json], None], case: Json) -> str:
    try:
        use(case["base_url"], case["expected"])
    except Exception as error:
        return "" if case["expected"]["error"] else f"{use.__name__}: {type(error).__name__}: {error}"[:300]
    return f"{use.__name__}: no error is raised" if case["expected"]["error"] else ""
