"""Start chromium and servers for the tests of the page, and look at everything that a page requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from support.models import answer_with, scripted, served
from support.servers.live import Live, live
from support.servers.pocket import pocket_settings

from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
KEY = "a key of the page, with ü"


def choose(page: Any, api: str) -> None:
    """Choose an API on the page."""
    page.locator(f"#apis input[value={api}]").evaluate("each => each.click()")


def answer(page: Any, text: str, size: int = 7, thinking: str = "") -> None:
    """Answer the next chat requests of a page with a text, in pieces of so many characters."""
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": thinking}] * bool(thinking)
    deltas += [{"content": text[start : start + size]} for start in range(0, len(text), size)]
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.unroute("**/v1/chat/completions")
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )


def verdict(page: Any) -> str:
    """Wait for the verdict of the judge on the page."""
    page.wait_for_selector(".verdict.right, .verdict.wrong")
    return str(page.inner_text(".verdict"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is missing: run `nox -s page`")
    if CHROMIUM is None:
        pytest.skip("chromium is missing: run `apt-get install chromium`")
    with driver.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with the pocket model and a store."""
    store = tmp_path_factory.mktemp("store") / "responses.db"
    with live(lambda: load(pocket_settings()), Settings(store=str(store))) as server:
        yield server


@pytest.fixture(scope="session")
def slow() -> Iterator[Live]:
    """A server that writes a long answer, slowly."""
    words = " ".join(f"word{number}" for number in range(300))
    with live(lambda: served(scripted(answer_with(words), delay=0.008)), Settings()) as server:
        yield server


@pytest.fixture(scope="session")
def keyed() -> Iterator[Live]:
    """A server that wants a key."""
    with live(lambda: served(scripted()), Settings(api_keys=(KEY,))) as server:
        yield server


class Visit:
    """A page in a browser, with what it requested and what went wrong."""

    def __init__(self, context: Any, url: str) -> None:
        self.url = url
        self.page = context.new_page()
        self.requested: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._console)

    def _console(self, message: Any) -> None:
        # Chromium reports every answer with an error status; tests ask for some. What Mermaid tries to run in its frame
        # is refused there.
        own = not message.location["url"].endswith(("/page/diagram.html", "/vendor/mermaid.min.js"))
        if message.type == "error" and "Failed to load resource" not in message.text and own:
            self.problems.append(message.text)

    def open(self, path: str = "/") -> Any:
        """Load a path and wait until the page is ready."""
        self.page.goto(self.url + path)
        if path == "/":
            self.page.wait_for_selector("#tab-settings[aria-selected=true]", state="attached")
        return self.page

    def ask(self, text: str) -> None:
        """Send a message and wait for the end of the answer."""
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        self.finished()

    def finished(self) -> None:
        """Wait until no answer is being written, and the last one is judged."""
        self.page.wait_for_selector("#send:text-is('Send')")
        self.page.wait_for_selector(".message.assistant .toolbar")

    def answer(self) -> str:
        """Return the text of the last answer."""
        return str(self.page.locator(".message.assistant .body").last.inner_text())

    def panel(self, name: str) -> None:
        """Show a panel."""
        self.page.click(f"#tab-{name}")


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Return a function that opens servers; at the end nothing went wrong, and all requests went to the server."""
    contexts: list[Any] = []
    visits: list[Visit] = []

    def make(
        server: Live, *, width: int = 1280, height: int = 800, scheme: str = "light", **more: Any
    ) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", **more
        )
        context.set_default_timeout(20_000)
        contexts.append(context)
        visits.append(Visit(context, server.url))
        return visits[-1]

    yield make
    for context in contexts:
        context.close()
    for each in visits:
        assert each.problems == []
        foreign = [url for url in each.requested if not url.startswith((each.url, "data:", "blob:"))]
        assert foreign == []
