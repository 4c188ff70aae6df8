"""The page for everybody: with a keyboard, on a narrow screen, in both themes, and by the rules of axe."""

from __future__ import annotations

from typing import Any

import pytest
from support.servers.axe import violations
from support.servers.live import Live

pytestmark = pytest.mark.browser

PANELS = ("settings", "events", "tokens", "server")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(visit: Any, pocket: Live, scheme: str, width: int) -> None:
    seen = visit(pocket, width=width, scheme=scheme)
    # axe is loaded by the driver, which a policy would forbid.
    page = seen.open()
    assert violations(page) == []
    if width == 390:
        page.click("#panel-toggle")
    page.click("text=Insert an example")
    page.check("text=Ask for the probabilities of tokens")
    page.click("text=All other parameters")
    assert violations(page) == []
    if width == 390:
        page.mouse.click(5, 5)
    seen.ask("What is the weather in Paris?")
    if width == 390:
        page.click("#panel-toggle")
    for panel in PANELS:
        seen.panel(panel)
        page.wait_for_timeout(300)
        if panel == "events":
            page.click(".event:first-child summary")
        assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_dialogs_and_in_the_reference(
    visit: Any, pocket: Live, keyed: Live, scheme: str
) -> None:
    seen = visit(pocket, scheme=scheme)
    page = seen.open()
    page.click("text=Code of the next request")
    assert violations(page) == []
    seen.open("/docs")
    assert violations(page) == []
    asked = visit(keyed, scheme=scheme).page
    asked.goto(keyed.url)
    asked.wait_for_selector("#key[open]")
    assert violations(asked) == []


def test_a_link_of_the_reference_opens_its_schema(visit: Any, pocket: Live) -> None:
    page = visit(pocket).open("/docs")
    page.click("text=Request body >> nth=0")
    assert page.locator("#ChatCompletionRequestMessage").is_hidden()
    page.click("a[href='#ChatCompletionRequestMessage'] >> nth=0")
    page.wait_for_selector("#ChatCompletionRequestMessage:visible")


def test_the_theme_follows_the_system_until_it_is_chosen(visit: Any, pocket: Live) -> None:
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    light, dark = (visit(pocket, scheme=scheme).open() for scheme in ("light", "dark"))
    colours = light.evaluate(colour), dark.evaluate(colour)
    assert colours[0] != colours[1]
    dark.click("#theme")
    assert dark.inner_text("#theme") == "Theme: light"
    assert dark.evaluate(colour) == colours[0]
    dark.reload()
    assert dark.evaluate(colour) == colours[0]
    dark.click("#theme")
    assert dark.evaluate(colour) == colours[1]


@pytest.mark.parametrize("width", [360, 700, 1000, 1100, 1280, 1920])
def test_no_width_needs_scrolling_sideways(visit: Any, pocket: Live, width: int) -> None:
    seen = visit(pocket, width=width)
    page = seen.open()
    wide = "each => each.scrollWidth > each.clientWidth + 1"
    for place in ("html", "header", ".segments", "#thread", "#composer"):
        assert not page.locator(place).evaluate(wide), place
    right = "each => each.getBoundingClientRect().right <= innerWidth"
    assert page.locator("#panel-toggle").evaluate(right)


def test_a_narrow_screen_has_everything(visit: Any, pocket: Live) -> None:
    seen = visit(pocket, width=390, height=844)
    page = seen.open()
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(wide)
    assert page.locator("#panel").is_hidden()
    assert page.locator("#sidebar").is_hidden()
    seen.ask("Count from 3 to 7.")
    assert "3, 4, 5, 6, 7" in seen.answer()
    page.click("#menu")
    page.wait_for_selector("#conversations .entry")
    page.click("#conversations .entry")
    assert page.locator("#sidebar").is_hidden()
    page.click("#panel-toggle")
    for panel in PANELS:
        seen.panel(panel)
        assert page.locator("#view").is_visible()
        assert not page.evaluate(wide)
    page.mouse.click(5, 400)
    assert page.locator("#panel").is_hidden()


def test_everything_is_reached_with_the_keyboard(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    focused = (
        "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
    )
    page.evaluate("document.activeElement.blur()")
    met = []
    for _ in range(60):
        page.keyboard.press("Tab")
        met.append(page.evaluate(focused))
    for wanted in ("skip", "new", "theme", "model", "panel-toggle", "prompt", "send", "tab-settings"):
        assert wanted in met
    page.focus("#tab-settings")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == "tab-events"
    assert page.get_attribute("#tab-events", "aria-selected") == "true"
    page.focus("#apis input:checked")
    page.keyboard.press("ArrowRight")
    assert page.locator("#apis input:checked").get_attribute("value") == "completions"
    page.keyboard.press("ArrowLeft")
    page.focus("#prompt")
    page.keyboard.type("Count from 3 to 7.")
    page.keyboard.press("Enter")
    seen.finished()
    assert "3, 4, 5, 6, 7" in seen.answer()
