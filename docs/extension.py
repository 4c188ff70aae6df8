"""Extend Sphinx: link ids of rules, make wide tables readable on a phone, address rows, repair what axe reports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms import SphinxTransform

__all__ = ["setup"]

_ID = re.compile(r"\b([A-Z]{1,4}-\d{2})(?=[a-z]?\b)")
_LEFT_OUT = (nodes.reference, pending_xref, nodes.literal, nodes.literal_block, nodes.title, nodes.raw)
_WIDE = 6
"""Columns of a table from which a phone shows each row as a block."""

_ADDRESSED = ("reference/options", "reference/parameters")
"""Pages whose tables have an address for each row."""
_REPAIRS = {
    'role="heading">': 'role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside aria-label="Site" class="sidebar-drawer">',
    '<aside class="toc-drawer': '<aside aria-label="Page" class="toc-drawer',
    # Long lines of code and wide tables scroll, which a keyboard must be able to do.
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}


class RuleLinks(SphinxTransform):
    """Turn ids such as CHAT-05 in the text of a page into links to `/rules/CHAT-05/`."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Replace the ids; a page does not link to itself."""
        for text in list(self.document.findall(nodes.Text)):
            if any(isinstance(parent, _LEFT_OUT) for parent in _parents(text)):
                continue
            parts = _ID.split(str(text))
            if len(parts) > 1:
                text.parent.replace(
                    text, [self._part(part, odd=n % 2 == 1) for n, part in enumerate(parts) if part]
                )

    def _part(self, part: str, *, odd: bool) -> nodes.Node:
        page = f"rules/{part}"
        if not odd or page not in self.env.found_docs or page == self.env.docname:
            return nodes.Text(part)
        return pending_xref(
            "",
            nodes.inline("", part),
            refdoc=self.env.docname,
            refdomain="std",
            reftype="doc",
            reftarget=f"/{page}",
            refexplicit=True,
            refwarn=True,
        )


def _parents(node: nodes.Node) -> Any:
    while (node := node.parent) is not None:
        yield node


def label_wide_tables(_: Any, document: nodes.document, __: str) -> None:
    """Give each cell of a wide table the head of its column, which the style sheet shows on narrow screens."""
    for table in document.findall(nodes.table):
        heads = [entry.astext() for row in table.findall(nodes.thead) for entry in row.findall(nodes.entry)]
        if len(heads) < _WIDE:
            continue
        table["classes"].append("stacked")
        for body in table.findall(nodes.tbody):
            for row in body.findall(nodes.row):
                for place, entry in enumerate(row.findall(nodes.entry)):
                    if place and entry.children:
                        entry.children[0].insert(0, nodes.inline("", f"{heads[place]} ", classes=["label"]))


def address_rows(_: Any, document: nodes.document, page: str) -> None:
    """Give each row that begins with a name an address, such as `/reference/options/#port`, and link the name to it.

    A field of several requests has the address of its first row; those of further ones begin with their sections.
    """
    taken = set(document.ids)
    for body in document.findall(nodes.tbody) if page in _ADDRESSED else ():
        for row in body.findall(nodes.row):
            name = row.children[0].next_node(nodes.literal)
            if name is None or not row.children[0].astext().startswith(name.astext()):
                continue
            plain = nodes.make_id(name.astext())
            section = next(each for each in _parents(row) if isinstance(each, nodes.section))
            address = plain if plain not in taken else f"{section['ids'][0]}-{plain}"
            if address not in taken:
                taken.add(address)
                row["ids"].append(address)
                name.replace_self(nodes.reference("", "", name.deepcopy(), internal=True, refid=address))


def repair_pages(app: Any, exception: Exception | None) -> None:
    """Repair what axe reports of furo's template."""
    for path in [] if exception else Path(app.outdir).rglob("index.html"):
        text = path.read_text("utf-8")
        for found, better in _REPAIRS.items():
            text = text.replace(found, better)
        path.write_text(text, "utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Register them."""
    app.add_transform(RuleLinks)
    app.connect("doctree-resolved", label_wide_tables)
    app.connect("doctree-resolved", address_rows)
    app.connect("build-finished", repair_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
