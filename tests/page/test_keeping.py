"""What the page keeps in the browser: conversations of several tabs, long texts, and answers that were cut off.

Laws:
    1. No tab takes away what another has added to a conversation.
    2. The list of conversations is shown without reading their messages.
    3. What arrived of an answer outlives a reload in the middle, and a browser without room still shows answers.
    4. A server that comes back with another model is asked for that one.
    5. A long text that is pasted is a file, and a long message is shown from its beginning.
    6. Settings that are broken or of an older page do no harm.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.models import answer_with, scripted, served
from support.servers.live import Live, live

from plumbline.server.settings import Settings

from .conftest import answer, choose

pytestmark = pytest.mark.browser

USERS = ".message.user .plain"
STORED = """async () => {
  const { all } = await import("/page/storage.js");
  return (await all("conversations")).flatMap(({ nodes }) => Object.values(nodes));
}"""
PASTE = """([text, html]) => {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  if (html) {
    data.setData("text/html", "<table></table>");
    data.items.add(new File([new Uint8Array([137, 80])], "cells.png", { type: "image/png" }));
  }
  const event = new ClipboardEvent("paste", { clipboardData: data, cancelable: true });
  return document.querySelector("#prompt").dispatchEvent(event);
}"""


def stored(page: Any, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """Wait until the browser keeps enough messages, and return them."""
    for _ in range(200):
        nodes: list[Any] = page.evaluate(STORED)
        if enough(nodes):
            return nodes
        page.wait_for_timeout(100)
    raise TimeoutError(str(nodes)[:500])


def test_two_tabs_keep_what_both_wrote(visit: Any, slow: Live) -> None:
    seen = visit(slow)
    one = seen.open()
    answer(one, "first")
    seen.ask("first question")
    two = one.context.new_page()
    two.goto(seen.url)
    two.wait_for_selector(f"{USERS}:text-is('first question')")
    answer(two, "second")
    two.fill("#prompt", "second question")
    two.press("#prompt", "Enter")
    # The tab that did not write it shows it, and goes on from there.
    one.wait_for_selector(f"{USERS}:text-is('second question')")
    one.wait_for_selector(".message.assistant:has-text('second')")
    seen.ask("third question")
    stored(one, lambda nodes: len(nodes) == 6)
    # One that has not heard of the others takes nothing away either.
    lone = one.context.new_page()
    lone.add_init_script("delete window.BroadcastChannel")
    lone.goto(seen.url)
    lone.wait_for_selector(f"{USERS}:text-is('third question')")
    seen.ask("fourth question")
    answer(lone, "fifth")
    lone.fill("#prompt", "fifth question")
    lone.press("#prompt", "Enter")
    nodes = stored(lone, lambda nodes: len(nodes) == 10)
    texts = {node["text"] for node in nodes if node["role"] == "user"}
    assert texts == {f"{name} question" for name in ("first", "second", "third", "fourth", "fifth")}


def test_the_list_is_shown_without_reading_all_messages(visit: Any, slow: Live) -> None:
    seen = visit(slow)
    page = seen.open()
    page.evaluate("""async () => {
      const { put } = await import("/page/storage.js");
      for (let number = 0; number < 200; number++) {
        const nodes = { u: { id: "u", parent: null, role: "user", text: `text ${number}`, at: number } };
        const title = `title ${number}`;
        await put("conversations", { id: `c${number}`, title, api: "chat", at: number, nodes, leaf: "u" });
      }
    }""")
    seen.page.add_init_script("""
      IDBObjectStore.prototype.getAll = () => { throw new Error("all messages are read"); };
    """)
    page.reload()
    page.wait_for_selector("#conversations li >> nth=199")
    assert page.locator("#conversations .entry").first.inner_text() == "title 199"
    page.click("#conversations .entry:text-is('title 7')")
    page.wait_for_selector(f"{USERS}:text-is('text 7')")
    answer(page, "short")
    seen.ask("hello")
    page.wait_for_selector("#conversations li >> nth=0 >> text=title 7")


def test_an_answer_outlives_a_reload_in_the_middle(visit: Any) -> None:
    words = " ".join(f"word{number}" for number in range(2000))
    with live(lambda: served(scripted(answer_with(words), delay=0.02)), Settings()) as server:
        page = visit(server).open()
        page.fill("#prompt", "hello")
        page.press("#prompt", "Enter")
        stored(page, lambda nodes: any("word3" in node.get("answer", {}).get("text", "") for node in nodes))
        page.reload()
        page.wait_for_selector(".message.assistant .text:has-text('word3')")


def test_a_browser_without_room_still_shows_answers(visit: Any, slow: Live) -> None:
    seen = visit(slow)
    seen.page.add_init_script("""
      IDBObjectStore.prototype.put = () => { throw new DOMException("no room", "QuotaExceededError"); };
    """)
    page = seen.open()
    answer(page, "an answer")
    page.fill("#prompt", "hello")
    page.press("#prompt", "Enter")
    page.wait_for_selector("#notice:has-text('did not keep this: no room')")
    seen.finished()
    assert seen.answer() == "an answer"


def test_a_server_that_comes_back_with_another_model_is_asked_for_it(visit: Any, slow: Live) -> None:
    seen = visit(slow)
    page = seen.open()
    chat = "**/v1/chat/completions"
    page.route(chat, lambda route: route.abort())
    seen.ask("hello")
    assert "connection broke" in page.inner_text(".problem")
    page.unroute(chat)
    page.route(
        "**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": [{"id": "another"}]})
    )
    refusal = {"error": {"message": "no such model", "code": "model_not_found"}}
    page.route(chat, lambda route: route.fulfill(status=404, json=refusal))
    page.click("text=Try again")
    page.wait_for_selector("#model option:text-is('another')", state="attached")
    page.unroute(chat)
    answer(page, "here again")
    with page.expect_request(chat) as sent:
        page.click("text=Try again")
    assert json.loads(sent.value.post_data)["model"] == "another"
    page.wait_for_selector(".message.assistant:has-text('here again')")


def test_a_long_text_that_is_pasted_is_a_file(visit: Any, slow: Live) -> None:
    seen = visit(slow)
    page = seen.open()
    text = "".join(f"line {number} of a log\n" for number in range(100_000))
    assert page.evaluate(PASTE, [text, False]) is False  # The field does not get it.
    page.wait_for_selector("#attachments li:has-text('pasted-1.txt')")
    answer(page, "short")
    with page.expect_request("**/v1/chat/completions") as sent:
        seen.ask("Sum up.")
    [message] = json.loads(sent.value.post_data)["messages"]
    assert message["content"] == f"Sum up.\n\npasted-1.txt:\n```\n{text}```"
    shown = page.locator(USERS)
    assert len(shown.inner_text()) < 10_000
    page.click(".bubble >> text=/Show all .* characters/")
    assert shown.text_content() == message["content"]
    assert page.evaluate(PASTE, ["x" * 9 * 2**20, False]) is False
    page.wait_for_selector("#notice:has-text('has more than 8 MiB')")


def test_cells_of_a_spreadsheet_are_pasted_as_text(visit: Any, slow: Live) -> None:
    page = visit(slow).open()
    assert page.evaluate(PASTE, ["a\tb\n1\t2", True]) is True
    page.wait_for_timeout(100)
    assert page.inner_text("#notice") == ""
    assert page.locator("#attachments li").count() == 0


@pytest.mark.parametrize("kept", ["{broken", "null", '{"api": "responses", "params": {"chat": {"seed": 7}}}'])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_settings_that_are_broken_or_old_do_no_harm(visit: Any, slow: Live, kept: str, api: str) -> None:
    seen = visit(slow)
    seen.page.add_init_script(f"localStorage.setItem('settings', {json.dumps(kept)})")
    page = seen.open()
    choose(page, api)
    page.fill("#prompt", "hello")
    with page.expect_request(f"**/{'chat/completions' if api == 'chat' else api}") as sent:
        page.press("#prompt", "Enter")
    assert json.loads(sent.value.post_data).get("seed") == (7 if "seed" in kept and api == "chat" else None)
