"""Check that a model folder answers its scripts, decoding greedily with transformers and with the native engine.

Both get the prompt from the folder's chat template. Answers are compared as text with control tokens and markers, so
that differences in tokens that servers leave out are also found.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from plumbline.answer.turn import ChatPrompt, Message
from plumbline.port.engine import GenerateRequest, SamplingParams
from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings
from plumbline_conformance.exact.scripts import CONTROL, Script, ScriptSet

__all__ = ["ScriptFailure", "by_our_engine", "by_transformers", "verify"]

END = CONTROL[-1]

_SPARE = 8
"""Tokens by which an answer may exceed its script before it is cut, enough to show the difference."""


@dataclass(frozen=True, slots=True)
class ScriptFailure:
    """An answer that differs from its script."""

    script: Script
    engine: str
    answer: str
    """The answer, with the control token that ended it."""


def verify(folder: Path, scripts: ScriptSet) -> list[ScriptFailure]:
    """Return every answer of either engine that differs from its script, in the order of the scripts."""
    answers = {
        "transformers": by_transformers(folder, scripts),
        "plumbline": asyncio.run(by_our_engine(folder, scripts)),
    }
    return [
        ScriptFailure(script, engine, written[index])
        for index, script in enumerate(scripts.scripts)
        for engine, written in answers.items()
        if written[index] != script.output + END
    ]


@torch.inference_mode()
def by_transformers(folder: Path, scripts: ScriptSet) -> list[str]:
    """Return the answers of transformers to all prompts, in the dtype of the config."""
    logging.disable_progress_bar()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    answers: list[str] = []
    for script in scripts.scripts:
        encoded = tokenizer.apply_chat_template(
            [{"role": "user", "content": script.prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        made = model.generate(**encoded, do_sample=False, max_new_tokens=_limit(script))
        new = made[0, encoded["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(new, skip_special_tokens=False))
    return answers


async def by_our_engine(folder: Path, scripts: ScriptSet) -> list[str]:
    """Return the answers of the native engine to all prompts in one batch, loaded as by `plumbline serve`."""
    model = load(Settings(models=(("", str(folder)),)))
    engine, renderer = model.engine, model.renderer
    await engine.start()

    async def answer(index: int, script: Script) -> str:
        prompt = ChatPrompt(messages=(Message(role="user", content=script.prompt),))
        request = GenerateRequest(
            request_id=str(index),
            prompt_token_ids=renderer.token_ids(prompt),
            sampling=SamplingParams(temperature=0.0, max_tokens=_limit(script)),
        )
        ids: list[int] = []
        async with aclosing(engine.generate(request)) as chunks:
            async for chunk in chunks:
                ids += chunk.token_ids
        return renderer.tokenizer.decode(ids)

    try:
        return await asyncio.gather(*(answer(index, script) for index, script in enumerate(scripts.scripts)))
    finally:
        await engine.stop()


def _limit(script: Script) -> int:
    # No token is shorter than a byte, so this always leaves room for the answer and its end.
    return len(script.output.encode()) + 1 + _SPARE
