"""Models for tests: a byte-level tokenizer with a ChatML template, over scripts or over a tiny random transformer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any

import torch

from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.constraints.grammar import LarkCompiler
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.models import Transformer, describe, random_model
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.scripted import Script, ScriptedEngine
from plumbline.port.engine import (
    Engine,
    EngineInfo,
    GenerateRequest,
    TokenChunk,
    TokenLogprob,
)
from plumbline.server.loading.engines import vocabulary
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline_kernels.cpu.library import load

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

CHATML = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- 'Tools:' }}
{%- for tool in tools %}
{{- '\\n' }}{{ tool | tojson }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role }}
{%- if message.name %}{{ ' ' + message.name }}{% endif %}
{{- '\\n' }}
{%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

_MERGES = [
    ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "w"), ("o", "r"), ("\u0120w", "or"),
    ("\u0120", "t"), ("\u0120t", "he"), ("\u0120", "a"), ("i", "n"), ("in", "g"), ("e", "r"), (".", "\u010a"),
    # Pieces of multi-byte characters: the first two bytes of the euro sign, the last two of an emoji and an "o".
    ("\u00e2", "\u0124"), ("\u0128", "\u0122"), ("\u0128\u0122", "o"),
]  # fmt: skip


def byte_alphabet() -> list[str]:
    """The stand-in characters of the bytes 0 to 255 in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_level_definition(extra: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The `tokenizer.json` of a byte-level BPE with a handful of merges."""
    vocab = {char: index for index, char in enumerate(byte_alphabet())}
    for left, right in _MERGES:
        vocab[left + right] = len(vocab)
    added = [
        {"id": len(vocab) + index, "content": text, "special": text in SPECIAL, "normalized": False,
         "lstrip": False, "rstrip": False, "single_word": False}
        for index, text in enumerate((*SPECIAL, *MARKERS))
    ]  # fmt: skip
    for token in extra:
        plain = {
            "special": False,
            "normalized": False,
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
        }
        added.append({"id": len(vocab) + len(added), **plain, **token})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [list(merge) for merge in _MERGES],
        },
    }


def byte_level(extra: Sequence[dict[str, Any]] = ()) -> TextTokenizer:
    """The tokenizer of `byte_level_definition`."""
    return TextTokenizer(byte_level_definition(extra), config={"eos_token": "<|im_end|>"})


def chatml(template: str = CHATML, extra: Sequence[dict[str, Any]] = ()) -> Renderer:
    """That tokenizer with a ChatML template."""
    return Renderer(byte_level(extra), ChatTemplate(template, eos_token="<|im_end|>"))


RENDERER = chatml()
TOKENIZER = RENDERER.tokenizer
EOS = TOKENIZER.added["<|im_end|>"]


# Scripts


def answer_with(text: str) -> Script:
    """Return a script that answers every request with this text, a token at a time."""
    return lambda request: text_chunks(request, text)


def text_chunks(request: GenerateRequest, text: str) -> Iterable[TokenChunk]:
    """The chunks of an answer, with the logprobs that the request asks for."""
    return token_chunks(request, TOKENIZER.encode_text(text))


def token_chunks(request: GenerateRequest, token_ids: Sequence[int]) -> Iterable[TokenChunk]:
    """One token a chunk, then the end of the sequence."""
    for position, token_id in enumerate([*token_ids, EOS]):
        last = token_id == EOS and position == len(token_ids)
        yield TokenChunk(
            token_ids=(token_id,),
            logprobs=(fake_logprob(request, token_id),) if request.sampling.logprobs is not None else None,
            finish_reason="stop" if last else None,
            prompt_logprobs=_prompt_logprobs(request) if position == 0 else None,
        )


def fake_logprob(request: GenerateRequest, token_id: int) -> TokenLogprob:
    """A logprob that depends on the token alone, with as many alternatives as the request wants."""
    value = -0.01 * (1 + token_id % 7)
    rivals = [(token_id, value)] + [((token_id + 1 + i) % 256, value - 1.0 - i) for i in range(25)]
    return TokenLogprob(token_id, value, tuple(rivals[: request.sampling.logprobs or 0]))


def _prompt_logprobs(request: GenerateRequest) -> tuple[TokenLogprob | None, ...] | None:
    if request.sampling.prompt_logprobs is None:
        return None
    rest = [fake_logprob(request, token_id) for token_id in request.prompt_token_ids[1:]]
    return (None, *rest)


def echo(request: GenerateRequest) -> Iterable[TokenChunk]:
    """Answer with the text of the last user message."""
    prompt = TOKENIZER.decode(request.prompt_token_ids)
    last = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    return text_chunks(request, f"You said: {last}" if "<|im_start|>" in prompt else f" and {prompt}")


def scripted_info(**changes: Any) -> EngineInfo:
    """The facts that the scripted engine gives about itself."""
    facts: dict[str, Any] = {
        "name": "scripted",
        "model": "scripted",
        "vocab_size": TOKENIZER.vocab_size,
        "max_model_len": 2048,
        "eos_token_ids": frozenset({EOS}),
    }
    return EngineInfo(**{**facts, **changes})


def scripted(script: Script = echo, **options: Any) -> ScriptedEngine:
    """An engine that plays a script."""
    info = options.pop("info", None) or scripted_info()
    return ScriptedEngine(info, script, **options)


class GatedEngine(ScriptedEngine):
    """A scripted engine that gives a chunk only when the test lets it.

    Attributes:
        started: ids of the requests that have begun, in order.
        num_given: chunks given so far.
    """

    def __init__(self, script: Script = echo, **options: Any) -> None:
        super().__init__(options.pop("info", None) or scripted_info(), script, **options)
        self.started: list[str] = []
        self.num_given = 0
        self._gate = asyncio.Semaphore(0)

    def let(self, chunks: int = 10_000) -> None:
        """Let this many chunks pass."""
        for _ in range(chunks):
            self._gate.release()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """As scripted, but gated."""
        self.started.append(request.request_id)
        async with aclosing(super().generate(request)) as inner:
            async for chunk in inner:
                await self._gate.acquire()
                self.num_given += 1
                yield chunk

    @property
    def num_running(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._running)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def hold_steps(engine: NativeEngine) -> threading.Event:
    """Hold an engine in its third step from now, so that nothing ends before the event is set."""
    let = threading.Event()
    runner = engine._keeper.core._runner  # type: ignore[attr-defined]
    forward, left = runner.forward, iter((True, True))

    def held(inputs: Any) -> None:
        if not next(left, False):
            let.wait(20)
        forward(inputs)

    runner.forward = held
    return let


def slow_down(engine: NativeEngine) -> None:
    """Let each step take 10 ms more, so that an answer of hundreds of tokens lasts for seconds."""
    runner = engine._keeper.core._runner  # type: ignore[attr-defined]
    forward = runner.forward

    def delayed(inputs: Any) -> None:
        time.sleep(0.01)
        forward(inputs)

    runner.forward = delayed


def served(
    engine: Engine, *, names: tuple[str, ...] = ("test-model",), renderer: Renderer = RENDERER
) -> ServedModel:
    """An engine with the text side of the test tokenizer."""
    return ServedModel(
        engine=engine,
        renderer=renderer,
        names=names,
        defaults=Defaults(vocab_size=engine.info.vocab_size),
        created=1_700_000_000,
        fingerprint="fp_test",
    )


@cache
def _tiny_model() -> tuple[Transformer, LarkCompiler]:
    """A random transformer on the kernels that servers have on a CPU, and grammars of its tokens."""
    torch.set_num_threads(1)
    ends = frozenset({EOS})
    grammars = LarkCompiler(vocabulary(TOKENIZER, ends, TOKENIZER.vocab_size))
    model = random_model(
        describe(
            {
                "model_type": "llama",
                "vocab_size": TOKENIZER.vocab_size,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "max_position_embeddings": 512,
            }
        ),
        seed=3,
        library=load(),
    )
    # Weights of the usual spread make every token almost equally likely; these have opinions.
    assert isinstance(model.embedding, torch.Tensor)
    model.embedding.mul_(25.0)
    return model, grammars


def tiny_engine(**changes: Any) -> NativeEngine:
    """The native engine with a random transformer that knows the test tokenizer's vocabulary."""
    model, grammars = _tiny_model()
    config = EngineConfig(
        **{
            "max_model_len": 512,
            "num_blocks": 256,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 256,
            **changes,
        }
    )
    runner = ModelRunner(
        model, num_blocks=config.num_blocks, block_size=config.block_size, device=torch.device("cpu")
    )
    return NativeEngine(
        config,
        runner,
        model="tiny",
        eos_token_ids=frozenset({EOS}),
        grammars=grammars,
    )
