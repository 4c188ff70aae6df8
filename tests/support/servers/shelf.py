"""Models for servers with several: each answers with its name, and the test decides when and whether it loads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec

from plumbline.engines.scripted import Script, ScriptedEngine
from plumbline.port.engine import EngineStats
from plumbline.server import models
from plumbline.server.loading.catalog import Catalog, ModelSource
from plumbline.server.loading.served_model import ServedModel
from support.bodies import BODIES
from support.models import GatedEngine, answer_with, scripted_info, served
from support.servers.asgi import Answer, Exchange, Server

RELEASED: list[None] = []
"""Grows when the memory of a model that has left is released."""
# A whole collection among the modules and tests of a process takes seconds, and a scripted model has little to free.
models.release_unused = lambda: RELEASED.append(None)  # type: ignore[attr-defined]

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


class Mortal(ScriptedEngine):
    """A scripted engine that may die."""

    dead = False

    def __init__(self, script: Script) -> None:
        super().__init__(scripted_info(), script)

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(super().stats(), alive=not self.dead)


class Shelf:
    """Models that answer with their names, and what happens to them."""

    def __init__(self, *names: str, gated: bool = False) -> None:
        self.names = names
        self.gated = gated
        self.engines: dict[str, list[Any]] = {name: [] for name in names}
        """The engines of each load, in order."""
        self.broken: set[str] = set()
        self.open = threading.Event()
        """Loads wait for it."""
        self.open.set()

    def load(self, name: str) -> ServedModel:
        assert self.open.wait(20)
        if name in self.broken:
            raise ValueError(f"/secret/{name} has no weights")
        engine = (GatedEngine if self.gated else Mortal)(answer_with(f"I am {name}."))
        self.engines[name].append(engine)
        return served(engine, names=(name,))

    def catalog(self, capacity: int = 1, *, default: str | None = None) -> Catalog:
        sources = {name: ModelSource((name,), lambda name=name: self.load(name), 1) for name in self.names}  # type: ignore[misc]
        return Catalog(
            sources=tuple(sources.values()),
            default=None if default is None else sources[default],
            capacity=capacity,
        )


def listed(shelf: Shelf) -> Catalog:
    """The catalog of a server that says which of its models are loaded."""
    return msgspec.structs.replace(shelf.catalog(), shows_status=True)


async def statuses(server: Server) -> dict[str, tuple[str, bool | None]]:
    models = (await server.get("/v1/models")).json["data"]
    return {model["id"]: (model["status"]["value"], model["status"].get("failed")) for model in models}


def body(path: str, model: str, **more: Any) -> dict[str, Any]:
    return {**BODIES[path], "model": model, **more}


def text(answer: Answer) -> str:
    """The text of a whole or streamed answer of any API."""
    assert answer.status == 200, answer.body
    if answer.header("content-type") == "text/event-stream":
        parts = []
        for event in answer.events:
            if event.data != "[DONE]":
                found = event.json
                if found.get("type") == "response.output_text.delta":
                    parts.append(found["delta"])
                if found.get("type") == "content_block_delta":
                    parts.append(found["delta"]["text"])
                parts += [_delta(choice) for choice in found.get("choices", ())]
        return "".join(parts)
    found = answer.json
    if "output" in found:
        return str(found["output"][0]["content"][0]["text"])
    if "content" in found:
        return str(found["content"][0]["text"])
    choice = found["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def _delta(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")


async def waits(exchange: Exchange) -> bool:
    """Whether a request is not answered after everything that can run has had its turn."""
    for _ in range(50):
        await asyncio.sleep(0)
    return not exchange.log
