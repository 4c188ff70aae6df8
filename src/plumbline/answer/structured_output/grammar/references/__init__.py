"""References of JSON Schemas: resolved within their document, and written as JSON pointers."""

from plumbline.answer.structured_output.grammar.references.endless import without_endless
from plumbline.answer.structured_output.grammar.references.resolve import (
    LISTS,
    MAPS,
    SCHEMAS,
    pointed,
    subschemas,
    with_pointers,
)

__all__ = ["LISTS", "MAPS", "SCHEMAS", "pointed", "subschemas", "with_pointers", "without_endless"]
