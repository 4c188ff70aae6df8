"""Laws of damaged templates, conversations and files: a worker answers or ends, and the next call is answered.

- A template that is taken renders, or is refused with a sentence; its worker keeps its bounds.
- A file is decoded, or refused with a sentence.
- A text has tokens, or is refused with a sentence.
"""

from __future__ import annotations

import asyncio
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates import workers
from plumbline.answer.text.templates.template import TemplateError, TemplateSpec
from plumbline.answer.text.templates.workers import TemplateWorkers
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import TextPrompt
from plumbline.base.workers.pool import Bounds, WorkerError, WorkerPool
from plumbline.pocket import MODEL_DIR
from plumbline.server.media.checking import CheckedFile, FileQuestion, RefusedFile

from .damage import damaged, damaged_json, explore

TEMPLATES = Path(__file__).parents[1] / "text" / "templates"
_SOURCES = [path.read_bytes() for path in sorted(TEMPLATES.glob("*.jinja"))[:12]]
_SOURCES += [
    b"{% set ns = namespace(x=[1]) %}{% for i in range(30) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    b"{{ ns.x | tojson }}",
    b"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(12) }}",
    b"{{ '%5d|%s' % (3, 'x') }}{{ '{:>4}{}'.format(1, 'y') }}{{ 'a b' | wordwrap(1) | urlize }}{{ 2 ** 9 }}",
    b"{{ messages | map(attribute='content') | join('-') | replace('a', 'bb') | center(30) | indent(2) }}",
]
_MESSAGES: list[Any] = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, {"y": None}]}}}],
        },
        {"role": "tool", "content": "1", "tool_call_id": "a"},
    ],
]
_TEXTS = [
    "Hello \ud55c\uad6d\uc5b4",
    "a" * 300,
    "\n \t" * 50,
    "\u0300" * 60,
    "\U0001f468\u200d\U0001f469" * 9,
    "x1" * 90,
]


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


@cache
def _templates() -> TemplateWorkers:
    return TemplateWorkers()


@cache
def _decoders() -> WorkerPool:
    return WorkerPool("plumbline.server.media.checking:handler", bounds=Bounds(5.0, 30.0, 1 << 29, 1 << 22))


@cache
def _renderer() -> Renderer:
    return Renderer(TextTokenizer.from_folder(MODEL_DIR), None)


def _check_reason(reason: object) -> None:
    assert 5 < len(str(reason)) < 5000


async def _rendered(source: str, messages: list[Any]) -> None:
    spec = TemplateSpec(source, source, (), None)
    async with _templates().turn("hostile") as rendering:
        try:
            await asyncio.to_thread(rendering.facts, spec)
            await asyncio.to_thread(rendering.render, spec, messages, {})
        except TemplateError as error:
            _check_reason(error)
    good = TemplateSpec("{{ messages[0].content }}", "{{ messages[0].content }}", (), None)
    async with _templates().turn("neighbour") as rendering:
        assert await asyncio.to_thread(rendering.render, good, [{"content": "x"}], {}) == "x"


def _source(data: bytes) -> None:
    _loop().run_until_complete(_rendered(data.decode("utf-8", "replace"), _MESSAGES[1]))


def _conversation(data: bytes) -> None:
    try:
        messages = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(messages, list):
        for source in _SOURCES[:3]:
            _loop().run_until_complete(_rendered(source.decode(), messages))


async def _decoded(data: bytes, kind: Any) -> None:
    question = FileQuestion(kind, data, 10**6, 10.0, 4, True)
    try:
        answer = await _decoders().call(msgspec.msgpack.encode(question), "hostile")
    except WorkerError as error:
        _check_reason(error)
    else:
        found = msgspec.msgpack.decode(answer, type=CheckedFile | RefusedFile)
        if isinstance(found, RefusedFile):
            _check_reason(found.why)
    good = FileQuestion("image", _pictures()[0], 10**6, 0.0, 0, False)
    answer = await _decoders().call(msgspec.msgpack.encode(good), "neighbour")
    assert isinstance(msgspec.msgpack.decode(answer, type=CheckedFile | RefusedFile), CheckedFile)


@cache
def _pictures() -> list[bytes]:
    found = []
    for kind, mode in (("PNG", "RGBA"), ("JPEG", "RGB"), ("WEBP", "RGB"), ("GIF", "P"), ("PNG", "I;16")):
        file = io.BytesIO()
        Image.new(mode, (40, 30), 7).save(file, kind)
        found.append(file.getvalue())
    return found


def _image(data: bytes) -> None:
    _loop().run_until_complete(_decoded(data, "image"))


def _text(data: bytes) -> None:
    try:
        _renderer().token_ids(TextPrompt(data.decode("utf-8", "replace")), 4096)
    except TemplateError as error:
        _check_reason(error)


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Any:
    patch = pytest.MonkeyPatch()
    patch.setattr(workers, "_BOUNDS", Bounds(0.5, 10.0, 1 << 28, 1 << 22))
    yield
    _loop().run_until_complete(_templates().close())
    _loop().run_until_complete(_decoders().close())
    patch.undo()


@pytest.mark.sampled
def test_templates() -> None:
    explore("templates", damaged(_SOURCES), _source)


@pytest.mark.sampled
def test_conversations() -> None:
    explore("conversations", damaged_json(_MESSAGES), _conversation)


@pytest.mark.sampled
def test_images() -> None:
    explore("images", damaged(_pictures()), _image)


@pytest.mark.sampled
def test_texts() -> None:
    explore("texts", damaged([text.encode() for text in _TEXTS]), _text)
