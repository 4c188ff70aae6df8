"""The committed pages of the site hang together; `tests/page/test_site.py` builds and checks all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clients.registry import CLIENTS
from PIL import Image

DOCS = Path(__file__).parents[2] / "docs"
RECORDINGS = DOCS.parent / "conformance" / "recordings"
BUILT = {
    DOCS / "rules" / "index.md",
    *(DOCS / "reference" / f"{name}.md" for name in ("differences", "dialect-differences", "parameters")),
    *(
        DOCS / "reference" / "servers" / f"{path.name.partition('.')[0]}.md"
        for path in RECORDINGS.glob("*.gz")
    ),
}
"""Pages that `nox -s docs` writes, which pages link to as well."""
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if path.relative_to(DOCS).parts[0] not in ("build", "rules") and path not in BUILT
)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
ENTRY = re.compile(r"^[\w/-]+$", re.MULTILINE)


def test_every_page_is_in_the_contents() -> None:
    contents = set(ENTRY.findall((DOCS / "index.md").read_text("utf-8")))
    for page in PAGES:
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        assert name in contents or name == "index", name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_link_leads_to_a_file(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = LINK.findall(prose)
    found = {target: (page.parent / target).resolve() for target in targets}
    assert [target for target, file in found.items() if file not in BUILT and not file.exists()] == []
    # A page outside of the site is not a part of it: name the file instead.
    outside = [
        target for target, file in found.items() if target.endswith(".md") and file not in (*PAGES, *BUILT)
    ]
    assert outside == []


def test_guides_are_short() -> None:
    """A guide that needs over 1,500 words is two guides, or has a reference in it."""
    index = (DOCS / "index.md").read_text("utf-8")
    listed = re.findall(r":caption: (Tutorial|Guides)\n:hidden:\n\n(.*?)\n:::", index, re.DOTALL)
    names = [name for _, block in listed for name in block.split()]
    assert len(names) > 20
    lengths = {name: len((DOCS / f"{name}.md").read_text("utf-8").split()) for name in names}
    long = {name: length for name, length in lengths.items() if length > 1500}
    assert long == {}


def test_the_page_of_clients_names_the_releases_that_are_run() -> None:
    rows = (DOCS / "guides" / "clients.md").read_text("utf-8").splitlines()
    for client in CLIENTS:
        row = next(row for row in rows if row.startswith(f"| `{client.name}`"))
        release = re.split("==|@", client.packages[0])[-1]
        assert release in row.split("|")[2], client.name


def test_the_page_is_shown_at_three_widths() -> None:
    """`tests/page/pictures.py` takes them."""
    guides = DOCS / "guides"
    pictures = sorted(guides.glob("page-*.webp"))
    assert [f"page-{Image.open(path).width}.webp" for path in pictures] == [path.name for path in pictures]
    assert len(pictures) == 3
    assert all(f"({path.name})" in (guides / "page.md").read_text("utf-8") for path in pictures)
