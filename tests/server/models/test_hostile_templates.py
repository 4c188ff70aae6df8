"""A chat template of a model or a request cannot hold up the server.

Laws:
    1. While a template runs without end, others are answered, in every API and through every way that a template comes.
    2. The request of that template is a 400 that says why, and the next prompt renders.
    3. Clients share the workers: one that sends such templates without end does not keep another one waiting for all.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from support.bodies import BODIES
from support.models import scripted, served, text_chunks
from support.servers.asgi import serving

from plumbline.answer.text.templates import workers
from plumbline.base.workers.pool import Bounds
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.settings import Settings

NESTED = (
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"
)
"""One comparison of 2**40 entries, which holds the interpreter lock."""
APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize", "/v1/responses/input_tokens")
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_BOUNDS", Bounds(0.5, 5.0, 1 << 28, 1 << 20))


def loaded(folder: Path, template: str) -> ServedModel:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(MODEL_DIR / name, folder)
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    return load(Settings(models=(("m", str(folder)),)), scripted(lambda request: text_chunks(request, "yes")))


@pytest.mark.parametrize("path", APIS)
async def test_others_are_answered_while_a_models_template_runs(path: str, tmp_path: Path) -> None:
    hangs = "{% if messages[0].content == 'hang' %}" + NESTED + "{% endif %}{{ messages[0].content }}"
    async with serving(loaded(tmp_path, hangs)) as server:
        body = {**BODIES.get(path, {}), "model": "m"}
        body |= (
            {"input": "hang"} if "responses" in path else {"messages": [{"role": "user", "content": "hang"}]}
        )
        body.pop("prompt", None)
        hanging = asyncio.create_task(server.post(path, body))
        other = await server.post("/v1/chat/completions", {"model": "m", "messages": MESSAGES})
        assert not hanging.done()
        assert other.status == 200
        answer = await hanging
        assert answer.status == 400
        assert "CPU time" in json.dumps(answer.json)
        assert (await server.post("/v1/chat/completions", {"model": "m", "messages": MESSAGES})).status == 200


async def test_others_are_answered_while_a_template_of_a_request_runs_or_is_read() -> None:
    sources = (NESTED, "{{ (2 ** 10000000000) % 7 }}")
    async with serving(served(scripted()), trust_request_chat_template=True) as server:
        for source in sources:
            body = {**BODIES["/v1/chat/completions"], "chat_template": source}
            hanging = asyncio.create_task(server.post("/v1/chat/completions", body))
            assert (await server.post("/v1/chat/completions", BODIES["/v1/chat/completions"])).status == 200
            answer = await hanging
            assert answer.status == 400
            assert "CPU time" in answer.error["message"]


async def test_a_client_with_many_endless_templates_leaves_others_their_turn() -> None:
    keys = {"api_keys": ("a", "b")}
    async with serving(served(scripted()), trust_request_chat_template=True, **keys) as server:
        body = {**BODIES["/v1/chat/completions"], "chat_template": NESTED}
        plain = {**BODIES["/v1/chat/completions"], "chat_template": "{{ messages[0].content }}"}
        many = [
            asyncio.create_task(
                server.post("/v1/chat/completions", body, headers={"authorization": "Bearer a"})
            )
            for _ in range(12)
        ]
        await asyncio.sleep(0.05)
        other = await server.post("/v1/chat/completions", plain, headers={"authorization": "Bearer b"})
        assert other.status == 200
        # On a busy machine a few may have ended; in the order of arrival all would have.
        assert sum(each.done() for each in many) <= len(many) // 2
        for each in many:
            each.cancel()
        await asyncio.gather(*many, return_exceptions=True)
