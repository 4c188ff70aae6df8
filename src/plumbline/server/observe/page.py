"""Write the page of metrics: `python -m plumbline.server.observe.page FILE`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from plumbline.answer.events import ChoiceEvent, Finish, Usage
from plumbline.contract.wire.call import Call
from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import EngineInfo
from plumbline.server.observe.answer_record import AnswerRecord
from plumbline.server.observe.metrics import Metrics
from plumbline.server.store.interface import Store
from plumbline.server.store.open import open_store

__all__ = ["page"]

_INTRODUCTION = """\
# Metrics

<!-- Written by `nox -s generate` from src/plumbline/server/observe/metrics.py. Do not edit. -->

`GET /metrics` has these families in Prometheus' text format. Where several keys share the server, it takes an admin key
or one with `metrics=yes` ([keys](../guides/keys-and-tls.md#keys)), unless the server was started with `--public
/metrics`. With several API servers each shows the counts of all. On Linux `process_…` has the memory, CPU time and open
files of the process that answers. The names of vLLM have the same numbers, so that its dashboards and autoscalers work.

| family | type | labels | what it counts |
|---|---|---|---|
"""


class _Nothing:
    held = limit = 0


async def page() -> str:
    """Return the page. Labels are those of a server with a model and a store that has answered a request."""
    with TemporaryDirectory() as folder:
        store = open_store(f"{folder}/store.db")
        await store.start()
        try:
            return _page(await _metrics(store))
        finally:
            await store.stop()


async def _metrics(store: Store) -> Metrics:
    metrics = Metrics(store)
    metrics.watch(messages=_Nothing())
    info = EngineInfo(name="", model="", vocab_size=2, max_model_len=2, eos_token_ids=frozenset())
    model = metrics.begin_model("model", ScriptedEngine(info, lambda _: []))
    call = Call("", "", {}, None, asyncio.Event().wait)
    async for _ in model.observe(_answer(), AnswerRecord(call, [])):
        pass
    metrics.opened()
    metrics.closed("/", 500, "server_error")
    return metrics


def _page(metrics: Metrics) -> str:
    families = text_string_to_metric_families(metrics.render().decode())
    return _INTRODUCTION + "\n".join(_rows(sorted(families, key=lambda family: family.name))) + "\n"


async def _answer() -> AsyncGenerator[ChoiceEvent, None]:
    yield 0, Finish("stop", Usage(1, 1))


def _rows(families: list[Metric]) -> Iterator[str]:
    for family in families:
        if family.name.endswith("_created") or family.name.startswith("process_"):
            continue
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        named = ", ".join(f"`{label}`" for label in labels)
        total = "_total" if family.type == "counter" else ""
        text = family.documentation.rstrip(".")
        yield f"| `{family.name.removesuffix('_total')}{total}` | {family.type} | {named} | {text} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(asyncio.run(page()), "utf-8")
