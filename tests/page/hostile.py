"""Texts that attack a page through what a model writes: scripts, requests to elsewhere, and cost."""

from __future__ import annotations

FAR = "http://elsewhere.example"
SCRIPT = "alert(1)"

HTML = (
    f"<script>{SCRIPT}</script>",
    f"<img src=x onerror={SCRIPT}>",
    f"<svg onload={SCRIPT}><script>{SCRIPT}</script></svg>",
    f"<iframe src='javascript:{SCRIPT}'></iframe><iframe srcdoc='<script>{SCRIPT}</script>'></iframe>",
    f"<a href='javascript:{SCRIPT}'>a</a><form action='{FAR}'><button>b</button></form>",
    f"<details open ontoggle={SCRIPT}><summary>s</summary></details>",
    f"<style>@import '{FAR}/a.css'; body {{ display: none }}</style><link rel=stylesheet href={FAR}/b.css>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={SCRIPT}&gt;'>",
    f"<noscript><p title='</noscript><img src=x onerror={SCRIPT}>'></noscript>",
    f"<template><script>{SCRIPT}</script></template><base href='{FAR}'>",
    f"<video src={FAR}/v.mp4 autoplay onerror={SCRIPT}></video><object data={FAR}/o></object><embed src={FAR}/e>",
    f"<meta http-equiv=refresh content='0;url={FAR}'><input autofocus onfocus={SCRIPT}>",
    "<div id=prompt>clobbered</div><img name=body><form id=composer></form>",
    f"<br onclick={SCRIPT}><sub onmouseover={SCRIPT}>x</sub><kbd style='background:url({FAR}/k)'>k</kbd>",
)
MARKDOWN = (
    f"![p]({FAR}/p.png) ![p]({FAR}/{'x' * 30}.svg 'title') ![q][ref]\n\n[ref]: {FAR}/q.png",
    f"[l](javascript:{SCRIPT}) [l](JaVaScRiPt:{SCRIPT}) [l](java\tscript:{SCRIPT}) [l](&#106;avascript:{SCRIPT})",
    f"[l](data:text/html,<script>{SCRIPT}</script>) [l](vbscript:x) [l](blob:x) [l](file:///etc/passwd)",
    f"<javascript:{SCRIPT}> <data:text/html,x> [x]: javascript:{SCRIPT}\n\n[x]",
    f"[a](https://ok.example/'onmouseover={SCRIPT}' \"' onmouseover='{SCRIPT}\")",
    f'```js" onload="{SCRIPT}\n{SCRIPT}\n```\n\n```<img/src=x/onerror={SCRIPT}>\nx\n```',
    f"| <img src=x onerror={SCRIPT}> | b |\n|---|:-:|\n| [a](javascript:{SCRIPT}) | `<script>` |",
    f'[^"><img/src=x/onerror={SCRIPT}>] [^a]\n\n[^a]: <script>{SCRIPT}</script>\n\n[^"><script>]: b',
    f"# <img src=x onerror={SCRIPT}>\n\n- [ ] <script>{SCRIPT}</script>\n- [x] <b onclick={SCRIPT}>",
)
MATH = (
    rf"\(\href{{javascript:{SCRIPT}}}{{x}}\) $\url{{javascript:{SCRIPT}}}$",
    rf"$$\includegraphics[height=1em]{{{FAR}/p.png}}$$",
    rf"\[\htmlClass{{x}}{{y}} \htmlId{{prompt}}{{z}} \htmlStyle{{background:url({FAR})}}{{w}}\]",
    rf"$<script>{SCRIPT}</script>$ \(<img src=x onerror={SCRIPT}>\)",
    r"$$\def\x{\x\x}\x$$ $$\rule{99999em}{99999em}$$ $\kern{-9999em}x$",
)
DIAGRAMS = (
    f'graph TD\n  A["<img src=x onerror={SCRIPT}>"] --> B\n  click A "javascript:{SCRIPT}"\n  click B href "{FAR}"',
    f"%%{{init: {{'themeCSS': '@import url({FAR}/c.css)', 'securityLevel': 'loose'}}}}%%\ngraph LR\n A-->B",
    f'sequenceDiagram\n  A->>B: <script>{SCRIPT}</script>\n  links A: {{"x": "javascript:{SCRIPT}"}}',
)
COSTLY = (
    "[" * 100_000,
    "![" * 50_000,
    "*a " * 50_000,
    "`" * 30_000 + "x",
    "".join("`" * (number % 40 + 1) + " " for number in range(5000)),
    "<" * 50_000,
    ">" * 5000 + " deep",
    "- " * 5000 + "deep",
    "\n".join(" " * number + "- x" for number in range(400)),
    "# a" + " " * 100_000 + "b",
    "|" * 20_000 + "\n" + "|-" * 10_000,
    "[a](" * 20_000,
    "\\(" * 30_000,
    "$$" * 30_000 + "x",
    "[^a]" * 30_000,
    "[a]: x\n" * 10_000,
    "a@" * 50_000,
    "https://a." * 20_000,
    "&" * 50_000 + "&#x110000;" * 1000,
    "_" * 50_000 + "a" + "_" * 50_000,
)
