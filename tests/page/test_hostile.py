"""The page in a browser: nothing that a model writes runs, loads anything, hides the page or holds it up.

Laws:
    1. No text of `hostile.py` makes an element that runs or loads, or an attribute that the page did not write.
    2. It asks for nothing from elsewhere, opens no dialog, and logs no refusal of the policy (`visit`).
    3. Its HTML is shown as text.
    4. No text costs more than its length.
    5. A diagram is drawn apart from the page and shown as a picture.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.servers.live import Live

from . import hostile
from .conftest import answer

pytestmark = pytest.mark.browser

ATTRIBUTES = {
    *("aria-hidden", "aria-label", "class", "dir", "href", "id", "open", "rel", "role", "scope", "start"),
    *("tabindex", "target", "title", "type", "data-source"),
}
LOOK = """(attributes) => {
  const text = document.querySelector(".message.assistant .text");
  const found = [...text.querySelectorAll("*")].filter((each) => !each.closest(".math"));
  const active = "script, style, img, svg, iframe, object, embed, form, input, link, meta, base, video, template, math";
  const bad = found.filter((each) => each.matches(active)).map((each) => each.outerHTML);
  for (const each of found) for (const { name, value } of each.attributes) {
    if (!attributes.includes(name)) bad.push(`${each.tagName} ${name}`);
    if (name === "href" && !/^(https?:\\/\\/|#note-)/.test(value)) bad.push(value);
    if (name === "id" && !value.startsWith("note-")) bad.push(value);
  }
  for (const each of text.querySelectorAll(".math a, .math img, .math [id], .math [class*=x]")) {
    if (each.matches("a, img, [id]")) bad.push(each.outerHTML);
  }
  return bad;
}"""


def shown(visit: Any, server: Live, text: str) -> Any:
    seen = visit(server)
    page = seen.open()
    page.on("dialog", lambda dialog: seen.problems.append(dialog.message))
    answer(page, text)
    seen.ask("hello")
    return page


def test_the_corpus_stays_text(visit: Any, pocket: Live) -> None:
    for texts in (hostile.HTML, hostile.MARKDOWN):
        page = shown(visit, pocket, "\n\n".join(texts))
        page.wait_for_timeout(200)
        assert page.evaluate(LOOK, sorted(ATTRIBUTES)) == []
        assert page.locator("#prompt").is_visible()
    page = shown(visit, pocket, "\n\n".join(hostile.HTML))
    written = page.inner_text(".message.assistant .text")
    for text in (
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<div id=prompt>",
        "<br onclick=",
    ):
        assert text in written


def test_each_text_alone_stays_text(visit: Any, pocket: Live) -> None:
    """Also as the whole answer, at its start and when it is cut after each character."""
    seen = visit(pocket)
    page = seen.open()
    page.on("dialog", lambda dialog: seen.problems.append(dialog.message))
    script = f"""async ([texts, attributes]) => {{
      const {{ Prose }} = await import("/page/prose.js");
      const look = {LOOK};
      const bad = [];
      for (const text of texts) {{
        const prose = new Prose();
        const article = document.createElement("article");
        article.className = "message assistant";
        article.append(prose.element);
        document.getElementById("messages").replaceChildren(article);
        for (let end = 1; end <= text.length; end += 3) prose.update(text.slice(0, end), true);
        prose.update(text, false);
        bad.push(...look(attributes));
      }}
      return bad;
    }}"""
    texts = [*hostile.HTML, *hostile.MARKDOWN, *hostile.MATH]
    assert page.evaluate(script, [texts, sorted(ATTRIBUTES)]) == []


def test_formulas_load_nothing(visit: Any, pocket: Live) -> None:
    page = shown(visit, pocket, "\n\n".join(hostile.MATH))
    page.wait_for_selector(".math.drawn")
    page.wait_for_timeout(300)
    assert page.evaluate(LOOK, sorted(ATTRIBUTES)) == []
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_diagrams_are_drawn_apart(visit: Any, pocket: Live) -> None:
    text = "\n\n".join(f"```mermaid\n{diagram}\n```" for diagram in hostile.DIAGRAMS)
    page = shown(visit, pocket, text)
    assert page.locator(".diagram").count() == 0
    for number in range(len(hostile.DIAGRAMS)):
        page.locator("text=Show the diagram").first.click()
        page.locator(".diagram").nth(number).wait_for()
    assert page.locator(".diagram svg, .diagram script, iframe").count() == 0
    assert page.evaluate("Object.keys(window).includes('mermaid')") is False


@pytest.mark.parametrize("number", range(len(hostile.COSTLY)))
def test_no_text_costs_more_than_its_length(visit: Any, pocket: Live, number: int) -> None:
    page = visit(pocket).open()
    script = """async (text) => {
      const { Prose } = await import("/page/prose.js");
      const prose = new Prose();
      document.getElementById("messages").replaceChildren(prose.element);
      const began = performance.now();
      prose.update(text, false);
      while (prose.done < text.length) prose.step();
      return performance.now() - began;
    }"""
    assert page.evaluate(script, hostile.COSTLY[number]) < 4000
