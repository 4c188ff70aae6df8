"""Read documents and results of searches, as far as they are text."""

from __future__ import annotations

from typing import Any

from plumbline.contract._generated.messages import DocumentBlockParam, SearchResultBlockParam
from plumbline.contract.wire.errors import unsupported_value
from plumbline.server.protocols.common.text_files import titled_text

__all__ = ["document_text"]


def document_text(block: DocumentBlockParam | SearchResultBlockParam, where: str) -> str:
    """Return the text of a block, after what the client says about it.

    Args:
        block: the block.
        where: its field.

    Raises:
        ApiError: 400 naming the part that is not text, such as a PDF file.
    """
    if isinstance(block, SearchResultBlockParam):
        heads, texts = (block.title, block.source), _texts(block.content, f"{where}.content")
    else:
        heads, texts = (block.title, block.context), _source(block.source, f"{where}.source")
    return titled_text(heads, texts)


def _source(source: Any, where: str) -> list[str]:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "text" and isinstance(source.get("data"), str):
        return [source["data"]]
    if kind == "content":
        return _texts(source.get("content"), f"{where}.content")
    raise unsupported_value(f"{where}.type", kind, "is not supported: of documents only text is read")


def _texts(content: Any, where: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    found: list[str] = []
    for index, part in enumerate(content if isinstance(content, list) else [content]):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise unsupported_value(
                f"{where}[{index}].type", kind, "is not supported: of documents only text is read"
            )
        found.append(part["text"])
    return found
