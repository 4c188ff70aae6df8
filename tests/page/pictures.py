"""Take the pictures of README.md and docs/guides/page.md: the page at three widths.

python tests/page/pictures.py [FOLDER]

needs what `nox -s page` installs: PYTHONPATH=.nox/page:tests. FOLDER is docs/guides if none is given. A picture has
few colours, which halves its bytes; all three together are as large as one PNG of the first was.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page.conftest import CHROMIUM, Visit
from PIL import Image
from playwright.sync_api import sync_playwright
from support.models import answer_with, scripted, served
from support.servers.live import live
from support.servers.pocket import pocket_settings

from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

COLOURS = 32
ANSWER = r"""The period of a pendulum of length \(\ell\) is

$$T = 2\pi\sqrt{\frac{\ell}{g}}$$

| length | period |
|---|---:|
| 0.25 m | 1.00 s |
| 1.00 m | 2.01 s |

```python
def period(length, g=9.81):
    return 2 * pi * sqrt(length / g)
```

- [x] small angles
- [ ] friction
"""


def events(seen: Visit) -> None:
    """Show an answer and its events."""
    seen.ask("What is the period of a pendulum?")
    seen.panel("events")
    seen.page.wait_for_selector(".verdict.right")
    seen.page.locator(".message.assistant .toolbar").scroll_into_view_if_needed()


def call(seen: Visit) -> None:
    """Show a tool call that waits for its result."""
    seen.page.click("#panel-toggle")
    seen.page.click("text=Insert an example")
    seen.page.mouse.click(5, 5)
    seen.ask("What is the weather in Paris?")
    seen.page.fill(".call textarea", '{"temperature": 21}')


def comparison(seen: Visit) -> None:
    """Show the answers of two settings, with the tokens that differ."""
    seen.ask("Count from 1 to 20.")
    seen.page.click(".message.assistant >> text=Compare")
    side = seen.page.locator("#compare .side").nth(1)
    side.get_by_label("max_completion_tokens").fill("16")
    side.get_by_label("max_completion_tokens").press("Tab")
    seen.page.click("text=Ask both")
    seen.page.wait_for_selector("#compare [role=status]:has-text('tokens only in A')")


PICTURES: dict[str, tuple[int, int, str, Callable[[Visit], None]]] = {
    "page-1280.webp": (1280, 720, "light", events),
    "page-820.webp": (820, 640, "light", comparison),
    "page-390.webp": (390, 640, "dark", call),
}
"""File: width, height, theme, what is shown."""


def save(picture: bytes, path: Path) -> None:
    """Write a picture with few colours."""
    whole = Image.open(io.BytesIO(picture)).convert("RGB")
    few = whole.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.convert("RGB").save(path, lossless=True, quality=100, method=6)


def take(browser: Any, name: str, url: str, folder: Path) -> None:
    """Take one picture."""
    width, height, scheme, show = PICTURES[name]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, locale="en"
    )
    seen = Visit(context, url)
    seen.open()
    show(seen)
    seen.page.wait_for_timeout(500)
    save(seen.page.screenshot(), folder / name)
    context.close()


def main() -> None:
    """Take all pictures."""
    folder = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parents[2] / "docs" / "guides")
    with (
        live(lambda: served(scripted(answer_with(ANSWER), delay=0.008)), Settings()) as written,
        live(lambda: load(pocket_settings()), Settings()) as pocket,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in PICTURES:
            take(browser, name, written.url if name == "page-1280.webp" else pocket.url, folder)
        browser.close()


if __name__ == "__main__":
    main()
