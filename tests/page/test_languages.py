"""The page in the languages that it has: each text is in one place, and each language is whole.

Laws:
    1. All languages have the same texts with the same values, and the page uses each of them.
    2. The browser's language is used, then the chosen one; a language without texts is English.
    3. From right to left, the page is mirrored, needs no scrolling sideways, and axe finds nothing.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest
from support.servers.axe import violations
from support.servers.live import Live

ASSETS = files("plumbline.server.page").joinpath("assets")
LANGUAGES = ("en", "de", "ar")
LINE = re.compile(r"""^  (\w+): (["'])(.*)\2,$""", re.M)


def texts(language: str) -> dict[str, str]:
    """The texts of a language."""
    source = ASSETS.joinpath(f"texts-{language}.js").read_text("utf-8")
    return {name: text for name, _, text in LINE.findall(source)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_every_text(language: str) -> None:
    english, found = texts("en"), texts(language)
    assert list(found) == list(english)
    for name, text in found.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", english[name])), name
        assert text.strip(), name
    same = {name for name in english if found[name] == english[name]}
    assert language == "en" or len(same) < 15


def test_every_text_is_used_and_every_used_text_is_known() -> None:
    used = set(
        re.findall(r'data-(?:text|label|hint)="(\w+)"', ASSETS.joinpath("index.html").read_text("utf-8"))
    )
    quoted = set()
    for file in ASSETS.iterdir():
        if file.name.endswith(".js") and not file.name.startswith("texts-"):
            source = file.read_text("utf-8")
            used |= set(re.findall(r'\bt\("(\w+)"', source))
            quoted |= set(re.findall(r'"(\w+)"', source))
    themes = {f"theme_{name}" for name in ("auto", "light", "dark")}
    assert used - set(texts("en")) == set()
    assert set(texts("en")) - used - quoted - themes == set()


def test_no_text_of_the_frame_is_in_its_html() -> None:
    html = ASSETS.joinpath("index.html").read_text("utf-8")
    words = re.findall(r">([^<>]*[A-Za-z]{2}[^<>]*)<", html.partition("<body")[2])
    assert {word.strip() for word in words} - {"", "Plumbline"} == set()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("locale", "send", "direction"),
    [("en-GB", "Send", "ltr"), ("de-AT", "Senden", "ltr"), ("ar", "إرسال", "rtl"), ("fr", "Send", "ltr")],
)
def test_the_language_of_the_browser_is_used(
    visit: Any, pocket: Live, locale: str, send: str, direction: str
) -> None:
    page = visit(pocket, locale=locale).open()
    assert page.inner_text("#send") == send
    assert page.evaluate("document.documentElement.dir") == direction
    assert page.evaluate("document.documentElement.lang") == (locale[:2] if locale != "fr" else "en")


@pytest.mark.browser
def test_a_language_is_chosen_in_the_settings(visit: Any, pocket: Live) -> None:
    page = visit(pocket).open()
    page.select_option("#language", "de")
    page.wait_for_selector("#send:text-is('Senden')")
    assert page.inner_text("#tab-settings") == "Einstellungen"
    page.reload()
    page.wait_for_selector("#send:text-is('Senden')")
    page.select_option("#language", "")
    page.wait_for_selector("#send:text-is('Send')")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_mirrored_from_right_to_left(visit: Any, pocket: Live, width: int) -> None:
    seen = visit(pocket, width=width, locale="ar", scheme="dark" if width == 390 else "light")
    page = seen.open()
    page.fill("#prompt", "Count from 3 to 7.")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".message.assistant .toolbar")
    assert "3, 4, 5, 6, 7" in seen.answer()
    assert violations(page) == []
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    if width == 1280:
        left = "each => each.getBoundingClientRect().left"
        places = [page.locator(name).evaluate(left) for name in ("#sidebar", "main", "#panel")]
        assert places == sorted(places, reverse=True)
    else:
        page.click("#panel-toggle")
    for panel in ("events", "tokens", "server", "settings"):
        seen.panel(panel)
        page.wait_for_timeout(300)
        assert violations(page) == []
        assert not page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
