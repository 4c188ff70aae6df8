"""The page in a browser: keys reach their server alone, and streams are read at a linear cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.servers.live import Live
from support.servers.path_proxy import below_a_path

from .conftest import KEY

pytestmark = pytest.mark.browser


def test_the_page_asks_for_a_key_and_keeps_it_in_the_tab(visit: Any, keyed: Live) -> None:
    seen = visit(keyed)
    page = seen.page
    page.goto(keyed.url)
    page.wait_for_selector("#key[open]")
    page.fill("#key-value", "a wrong key")
    page.click("text=Use this key")
    page.wait_for_selector("text=The server does not know this key.")
    page.fill("#key-value", KEY)
    page.click("text=Use this key")
    page.wait_for_selector("#tab-settings[aria-selected=true]")
    seen.ask("hello")
    assert "You said: hello" in seen.answer()
    assert page.evaluate("sessionStorage.getItem('key')") == KEY
    assert KEY not in page.evaluate("JSON.stringify(localStorage)")
    page.click("text=Code")
    assert KEY not in page.inner_text("#code")


def test_requests_that_are_refused_together_get_the_same_key(visit: Any, keyed: Live) -> None:
    page = visit(keyed).page
    page.goto(keyed.url)
    page.wait_for_selector("#key[open]")
    page.evaluate("import('/page/stream.js').then(({ askKey }) => { askKey(''); })")
    page.fill("#key-value", KEY)
    page.click("text=Use this key")
    page.wait_for_selector("#tab-settings[aria-selected=true]")
    assert page.evaluate("sessionStorage.getItem('key')") == KEY


def test_a_dialog_that_is_closed_does_not_come_back(visit: Any, keyed: Live) -> None:
    page = visit(keyed).page
    page.goto(keyed.url)
    page.wait_for_selector("#key[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#notice:has-text('The page cannot start')")
    assert page.locator("#key[open]").count() == 0


def test_the_page_works_below_a_path(visit: Any, pocket: Live) -> None:
    with below_a_path("/llm", pocket) as port:
        seen = visit(pocket)
        seen.url = f"http://127.0.0.1:{port}"
        seen.page.goto(f"{seen.url}/llm/")
        seen.page.wait_for_selector("#tab-settings[aria-selected=true]")
        seen.ask("Count from 3 to 5.")
        assert seen.answer() == "3, 4, 5"
        seen.page.click("text=Code")
        seen.page.wait_for_selector(f"#code:has-text('{seen.url}/llm/v1/chat/completions')")
        seen.page.goto(f"{seen.url}/llm/docs")
        seen.page.click("a[href='openapi.json']")
        assert '"openapi"' in seen.page.inner_text("pre")


def test_events_are_read_from_any_frames_at_a_linear_cost(visit: Any, pocket: Live) -> None:
    """An event of 16 MiB in frames of 16 KiB, and two events cut at every byte."""
    page = visit(pocket).open()
    script = r"""async () => {
      const { EventReader } = await import("/page/stream.js");
      const bytes = (text) => new TextEncoder().encode(text);
      const text = 'event: a\r\ndata: {"x": "é"}\r\n\r\ndata: 2\n\ndata: 3\n\n';
      const events = [];
      for (let cut = 0; cut <= bytes(text).length; cut++) {
        const reader = new EventReader();
        const found = reader.take([[0, bytes(text).slice(0, cut)], [1, bytes(text).slice(cut)]]);
        events.push(JSON.stringify(found.map(({ data, name, json }) => [data, name ?? null, json])));
      }
      const frames = [[0, bytes("data: ")]];
      for (let number = 0; number < 1024; number++) frames.push([0, bytes("x".repeat(16384))]);
      frames.push([0, bytes("\n\n")]);
      const reader = new EventReader();
      let length = 0;
      for (let count = 1; count <= frames.length; count++) length = reader.take(frames.slice(0, count)).length;
      return [[...new Set(events)], length, reader.events[0].data.length];
    }"""
    cut, count, length = page.evaluate(script)
    assert [json.loads(each) for each in cut] == [
        [['{"x": "é"}', "a", {"x": "é"}], ["2", None, 2], ["3", None, 3]]
    ]
    assert (count, length) == (1, 16 << 20)
