"""Load the prompt templates of a folder: `FOLDER/ID/VERSION.json`."""

from __future__ import annotations

import re
from pathlib import Path

from plumbline.server.protocols.responses.prompt_templates import (
    BadTemplateError,
    PromptTemplate,
    PromptTemplates,
)
from plumbline.server.settings import OptionError
from plumbline.server.settings.values import read_bounded

__all__ = ["load_prompts"]


def load_prompts(folder: str) -> PromptTemplates:
    """Return the templates of a folder; the latest version of each is the one that sorts last, by numbers and names.

    Args:
        folder: the folder, or an empty string for none.

    Raises:
        OptionError: the folder cannot be read, or a template in it cannot be used.
    """
    if not folder:
        return PromptTemplates()
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise OptionError("--prompts", f"must be a directory, and {folder} is not one")
    found: dict[str, dict[str, PromptTemplate]] = {}
    for path in sorted(root.glob("*/*.json"), key=lambda path: (path.parent.name, _order(path.stem))):
        try:
            if not path.is_file():
                raise OSError("it is not a file")
            template = PromptTemplate(path.stem, read_bounded(str(path)))
        except (OSError, ValueError, BadTemplateError) as error:
            raise OptionError("--prompts", f"has {path}, which cannot be used: {error}") from None
        found.setdefault(path.parent.name, {})[path.stem] = template
    return PromptTemplates(found)


def _order(version: str) -> list[tuple[int, str]]:
    """Return a key that sorts `2` before `10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", version) if part]
