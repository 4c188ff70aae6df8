"""The page in a browser: answers look as people expect, and long ones stay smooth.

Laws:
    1. GitHub's Markdown, formulas, code and diagrams become elements, however the text is cut while it comes.
    2. KaTeX and Mermaid are loaded by the first message that needs them.
    3. An answer of 50,000 tokens holds the page up for no more than 100 ms at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.servers.axe import violations
from support.servers.live import Live

from .conftest import answer

pytestmark = pytest.mark.browser

MARKDOWN = r"""# Title

A paragraph with **bold**, *italic*, ~~gone~~, `code`, H<sub>2</sub>O, https://example.org/x and [a link][later].
Another line.[^1]

- [ ] to do
- [x] done
  - inner

3. three
4. four

> quoted

| left | right |
|:-----|------:|
| a<br>b | 1 |

```python
def f(x):
    return "s"  # comment
```

Inline \(a^2\) and $b_1$, but $5 and $6.

\[
x = \frac{1}{2}
- 1
\]

$$ \sum_i i $$

شكرا جزيلا

[later]: https://example.org/later
[^1]: The *note*.
"""
TEXT = ".message.assistant .text"


def ask(visit: Any, server: Live, text: str, **more: Any) -> Any:
    seen = visit(server)
    page = seen.open()
    answer(page, text, **more)
    seen.ask("hello")
    return page


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_markdown_becomes_elements(visit: Any, pocket: Live, size: int) -> None:
    page = ask(visit, pocket, MARKDOWN, size=size)
    page.wait_for_selector(".math.drawn >> nth=3")
    counts = {
        "h3": 1,
        "strong": 1,
        "s": 1,
        "sub": 1,
        "li.task": 2,
        "li li": 1,
        "ol[start='3'] li": 2,
        "blockquote": 1,
        "table td.to-right": 1,
        "td br": 1,
        ".hljs-keyword": 2,
        ".hljs-comment": 1,
        ".math.drawn": 4,
        ".math.display": 2,
        ".katex-error": 0,
        "sup a": 1,
        ".note em": 1,
        "a[href='https://example.org/later']": 1,
    }
    found = {selector: page.locator(f"{TEXT} {selector}").count() for selector in counts}
    assert found == counts
    assert page.locator(f"{TEXT} p:has-text('but')").inner_text().endswith("but $5 and $6.")
    assert page.inner_text(f"{TEXT} li.task >> nth=1").startswith("☑ done")
    target = page.get_attribute(f"{TEXT} sup a", "href")
    assert page.locator(f"{TEXT} {target} em").inner_text() == "note"
    arabic = page.locator(f"{TEXT} p:has-text('شكرا')")
    assert arabic.evaluate("each => getComputedStyle(each).direction") == "rtl"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_in_answers(visit: Any, pocket: Live, scheme: str, width: int) -> None:
    seen = visit(pocket, scheme=scheme, width=width)
    page = seen.open()
    code = "```python\n@cached\nclass A(B):\n    x = 1.5  # why\n```\n"
    code += "```diff\n- a\n+ b\n```\n```html\n<a href='x'>y</a>\n```"
    for text in (
        MARKDOWN,
        code,
        '{"a": [1, null, true, {"b": "text"}]}',
        "```mermaid\ngraph TD\n  A --> B\n```",
    ):
        answer(page, text, thinking="Hm.")
        seen.ask("hello")
    page.click("text=Show the diagram")
    page.wait_for_selector(".diagram img")
    for summary in page.locator(".thinking summary").all():
        summary.click()
    assert violations(page) == []
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_code_is_copied_as_it_was_written(visit: Any, pocket: Live) -> None:
    code = "".join(f"line {number} <b>\n" for number in range(2000))
    page = ask(visit, pocket, f"```text\n{code}```\n\nafter", size=500)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click(".code-head >> text=Copy")
    page.wait_for_selector("#notice:has-text('copied')")
    assert page.evaluate("navigator.clipboard.readText()") == code.removesuffix("\n")
    assert page.text_content(TEXT).endswith("after\n")


def test_what_is_large_is_loaded_when_it_is_needed(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()

    def loaded(name: str) -> bool:
        return any(name in url for url in seen.requested)

    answer(page, "plain **text**")
    seen.ask("hello")
    assert not loaded("katex")
    answer(page, "$x$\n\n```mermaid\ngraph TD\n  A --> B\n```")
    seen.ask("hello")
    page.wait_for_selector(".math.drawn")
    assert loaded("katex.min.js")
    assert not loaded("mermaid")
    page.click("text=Show the diagram")
    picture = page.wait_for_selector(".diagram img")
    assert loaded("mermaid.min.js")
    page.wait_for_function("each => each.complete && each.naturalWidth > 20", arg=picture)
    page.click("text=Show the source")
    assert page.locator(".diagram").count() == 0
    answer(page, "```mermaid\nno diagram\n```")
    seen.ask("hello")
    page.locator("text=Show the diagram").last.click()
    page.wait_for_selector(".diagram:has-text('cannot be drawn')")


def test_thinking_has_its_time(visit: Any, pocket: Live) -> None:
    page = ask(visit, pocket, "Yes.", thinking="Let me *see*.")
    assert page.locator(".thinking div").is_hidden()
    assert "Thought for" in page.inner_text(".thinking summary")
    page.click(".thinking summary")
    assert page.inner_text(".thinking div") == "Let me *see*."


KINDS = {
    "mixed": MARKDOWN * 300,
    "code": "```python\n" + "    value = compute(other, 'text')  # why\n" * 5200 + "```\n",
    "list": "- an item with **bold** text and `code` in it\n" * 4300,
    "table": "| a | b |\n|---|---|\n" + "| some text | and **more** of it |\n" * 6000,
    "paragraph": "some words that go on and on with *emphasis* and never end " * 3400,
    "formulas": "The value \\(x_1^2 + \\frac{a}{b}\\) is less than $\\sqrt{y}$.\n\n" * 3000,
    "thinking": "I think about it. " * 11_000 + "\n",
    "events": "some words that go on, and a line that ends\n" * 4600,
    "tokens": "some words that go on, and a line that ends\n" * 4600,
}
STREAM = """
(() => {
  const real = window.fetch;
  window.fetch = async (path, options) => {
    if (!String(path).includes("/v1/chat")) return real(path, options);
    const { text, thinking, logprobs } = window.fake;
    const encoder = new TextEncoder();
    const likely = (token) => ({ content: [{ token, logprob: -0.5, top_logprobs: [{ token, logprob: -0.5 }] }] });
    const event = (delta) => `data: ${JSON.stringify({ id: "c", choices: [{
      index: 0, delta, ...(logprobs ? { logprobs: likely(delta.content) } : {}) }] })}\\n\\n`;
    let place = 0;
    return new Response(new ReadableStream({ async pull(sink) {
      await new Promise((resolve) => setTimeout(resolve, 8));
      for (let count = 0; count < 60 && place < text.length; count++, place += 4) {
        const name = thinking ? "reasoning_content" : "content";
        sink.enqueue(encoder.encode(event({ [name]: text.slice(place, place + 4) })));
      }
      if (place >= text.length) { sink.enqueue(encoder.encode("data: [DONE]\\n\\n")); sink.close(); }
    } }, { highWaterMark: 0 }), { headers: { "content-type": "text/event-stream" } });
  };
})();
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_answer_stays_smooth(
    visit: Any, pocket: Live, browser: Any, tmp_path: Path, kind: str
) -> None:
    seen = visit(pocket)
    seen.page.add_init_script(STREAM)
    page = seen.open()
    page.set_default_timeout(120_000)
    fake = {"text": KINDS[kind][:200_000], "thinking": kind == "thinking", "logprobs": kind == "tokens"}
    page.evaluate("(fake) => Object.assign(window, { fake })", fake)
    if kind in ("events", "tokens"):
        seen.panel(kind)
    # CPU time of the page's thread, so that other work on the machine does not count.
    trace = tmp_path / "trace.json"
    browser.start_tracing(
        page=page, path=trace, categories=["toplevel", "disabled-by-default-devtools.timeline"]
    )
    seen.ask("hello")
    page.wait_for_timeout(1000)
    browser.stop_tracing()
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    main = {(each["pid"], each["tid"]) for each in events if each["args"].get("name") == "CrRendererMain"}
    tasks = [
        each["tdur"] // 1000
        for each in events
        if each["name"] == "RunTask" and (each["pid"], each["tid"]) in main and "tdur" in each
    ]
    assert len(tasks) > 500
    assert max(tasks) < 100, sorted(tasks)[-8:]
