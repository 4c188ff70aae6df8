"""The table of hostile requests: every large field at its maximum and beyond, and everything beside the fields.

`FIELDS` of a row are the members of the contract's schemas that it fills, as patterns such as `*.tools`; the test of
the contract demands a row for every member that can be large. Scalars get their rows from the contract itself.
"""

from __future__ import annotations

from . import bodies as bodies  # Each adds its rows.
from . import counts as counts
from . import grammars as grammars
from . import messages as messages
from . import page as page
from . import texts as texts
from . import values as values
from .table import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    INPUT_TOKENS,
    LOAD_ADAPTER,
    RESPONSES,
    ROWS,
    TOKENIZE,
    UNLOAD_ADAPTER,
    UNLOAD_MODEL,
    Row,
    base,
)

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "DETOKENIZE",
    "FORM_ROWS",
    "INPUT_TOKENS",
    "LOAD_ADAPTER",
    "RESPONSES",
    "ROWS",
    "TOKENIZE",
    "UNLOAD_ADAPTER",
    "UNLOAD_MODEL",
    "Row",
    "base",
]

FORM_ROWS = [row for row in ROWS if row.name.startswith("form: ")]
"""Rows of requests that only a server with `--lenient` may accept."""
