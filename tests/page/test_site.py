"""The site as a visitor sees it: every link leads somewhere, ids of rules are found, and axe finds nothing.

Sphinx builds it from the committed pages and from what `conformance/reference_servers/pages.py` writes for two servers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from support.servers.axe import violations

from plumbline_conformance.suite.contract import rules

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
SERVERS = ("plumbline", "vllm")
PAGES = (
    *("/", "/rules/", "/rules/CHAT-05/", "/reference/matrix/", "/reference/servers/vllm/", "/guides/judge/"),
    "/evidence/matrix.html",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("sphinx", reason="Sphinx is missing: run `nox -s page`")
    root = tmp_path_factory.mktemp("root")
    for path in ROOT.iterdir():
        if path.name not in ("docs", ".git", ".nox"):
            (root / path.name).symlink_to(path)
    # What an earlier build left is not part of the sources.
    copytree(ROOT / "docs", root / "docs", ignore=ignore_patterns("build", "rules"))
    script = ROOT / "conformance" / "reference_servers" / "pages.py"
    subprocess.run([sys.executable, str(script), str(root), *SERVERS], check=True)
    page = str(root / "docs" / "reference" / "parameters.md")
    subprocess.run([sys.executable, "-m", "generate.parameters", page], check=True, cwd=ROOT / "openapi")
    differences = ROOT / "tests" / "reference_parsers" / "differences.md"
    copyfile(differences, root / "docs" / "reference" / "dialect-differences.md")
    built = root / "site"
    # The options of `nox -s docs`.
    options = ("-q", "-E", "-W", "-n", "-b", "dirhtml")
    subprocess.run([sys.executable, "-m", "sphinx", *options, str(root / "docs"), str(built)], check=True)
    return built


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site behind HTTP, because a search needs it."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class Links(HTMLParser):
    """The links of a page, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [link for name in ("href", "src") if (link := found.get(name)) is not None]
        self.places |= {place for name in ("id", "name") if (place := found.get(name)) is not None}


def test_every_link_leads_to_a_place(site: Path) -> None:
    pages = {path: Links(path.read_text("utf-8")) for path in site.rglob("*.html")}
    dead = []
    for path, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            places = pages[there].places if there in pages else set()
            if not there.is_file() or (parts.fragment and unquote(parts.fragment) not in places):
                dead.append((path.relative_to(site).as_posix(), link))
    assert len(pages) > 280
    assert dead == []


def test_every_rule_has_its_address(site: Path) -> None:
    assert [rule for rule in rules() if not (site / "rules" / rule / "index.html").is_file()] == []
    # A page names the rules that it is about, and each name is a link.
    assert '<a class="reference internal" href="../../../rules/ERR-01/">' in (
        site / "reference" / "servers" / "vllm" / "index.html"
    ).read_text("utf-8")


@pytest.mark.parametrize(("page", "name"), [("options", r"`(--[a-z-]+)`"), ("parameters", r"`(\w+)`")])
def test_every_option_and_parameter_has_its_address(site: Path, page: str, name: str) -> None:
    found = Links((site / "reference" / page / "index.html").read_text("utf-8"))
    source = (site.parent / "docs" / "reference" / f"{page}.md").read_text("utf-8").partition("\n## ")[2]
    names = {each.lstrip("-").replace("_", "-").lower() for each in re.findall(rf"^\| {name}", source, re.M)}
    assert len(names) > 80
    assert {each for each in names if each not in found.places or f"#{each}" not in found.links} == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(browser: Any, address: str, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    found = {}
    for path in PAGES:
        page.goto(address + path)
        found[path] = violations(page)
    context.close()
    assert found == {path: [] for path in PAGES}


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_needs_no_scrolling_sideways(browser: Any, address: str, path: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(address + path)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    if path == "/reference/matrix/":
        wide = "each => each.scrollWidth > each.clientWidth + 1"
        assert not page.locator(".table-wrapper:has(.stacked)").first.evaluate(wide)
        assert page.locator(".stacked .label").first.is_visible()
    context.close()


@pytest.mark.parametrize("rule", ["CHAT-05", "ERR-01", "WS-03"])
def test_the_search_finds_a_rule(browser: Any, address: str, rule: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/search/?q={rule}")
    first = page.locator("#search-results ul.search li a").first
    first.wait_for()
    assert first.get_attribute("href").split("?")[0].endswith(f"rules/{rule}/")
    page.close()
