"""Name the file of a model folder that is missing or broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["named_files"]


@contextmanager
def named_files(folder: Path) -> Iterator[None]:
    """Name the file of a model folder that is missing or broken.

    Raises:
        FileNotFoundError: the folder lacks a file that serving needs.
        ValueError: a file of the folder is not JSON.
    """
    try:
        yield
    except FileNotFoundError as error:
        path = Path(error.filename or "")
        if path.parent != folder:
            raise
        raise FileNotFoundError(f"the model folder {folder} has no {path.name}") from error
    except RecursionError as error:
        raise ValueError(
            f"{_broken(folder)} is not valid JSON: its lists or objects are nested too deep"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{_broken(folder)} is not valid JSON: {error}") from error
    except ValueError as error:
        if "integer string conversion" not in str(
            error
        ):  # Python's words for a number of thousands of digits.
            raise
        raise ValueError(f"{_broken(folder)} has a number with too many digits") from error


def _broken(folder: Path) -> Path:
    """Return the first file of the folder that cannot be parsed, or else the folder."""
    for path in sorted(folder.glob("*.json")):
        try:
            json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError):
            return path
    return folder
