"""Load a model: its engine, its text side and its sampling defaults."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from plumbline import __version__
from plumbline.dialects.build import build_dialect
from plumbline.dialects.kinds.plain import PLAIN
from plumbline.dialects.model_dialect import ModelDialect
from plumbline.dialects.parsers.response_template import BadResponseTemplateError
from plumbline.dialects.registry import DialectChoice, UnknownDialectError, choose
from plumbline.engines.grammar import LarkCompiler, Vocabulary
from plumbline.engines.native.config import EngineConfig
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.models.config import ModelConfig
from plumbline.engines.native.models.loader import load_model, resolve_model
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.port import Engine
from plumbline.protocols.common.sampling import Defaults
from plumbline.server.settings import Settings, SettingsError, pocket_model
from plumbline.text.prompts.deepseek import ModelTexts
from plumbline.text.prompts.encoders import PromptFormat
from plumbline.text.prompts.families import prompt_encoder
from plumbline.text.render import Renderer
from plumbline.text.shown_call import shown_call
from plumbline.text.templates.template import ChatTemplate
from plumbline.text.tokenizer import TextTokenizer

__all__ = ["ServedModel", "load", "vocabulary"]

_TOKENIZER_CLASS = "PreTrainedTokenizerFast"
"""transformers' class for a folder that names none."""
_NATIVE_CACHE = 256 * 1024 * 1024
"""Bytes of keys and values, allocated at the start."""
_TRANSFORMERS_CACHE = 4 * 1024**3
"""Bytes of keys and values at most; only what requests need is allocated."""
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model ready to be served: its engine, its text side and its names."""

    engine: Engine
    renderer: Renderer
    names: tuple[str, ...]
    """Ids that requests may use; the first is the one in answers (MOD-04)."""
    defaults: Defaults
    created: int
    fingerprint: str
    tokenizer_info: Mapping[str, Any] = msgspec.field(
        default_factory=lambda: {"tokenizer_class": _TOKENIZER_CLASS}
    )
    """The tokenizer's configuration with the chat template."""
    weight_bytes: int = 0
    """Size of the files with its weights; 0 if it is not known."""
    dialect: ModelDialect = PLAIN
    """How the model writes reasoning and calls; by default every answer is text."""


def load(settings: Settings) -> ServedModel:
    """Load the model and build its engine, which still has to be started.

    Raises:
        FileNotFoundError: the model is neither a folder nor a hub id that can be reached.
        SettingsError: the settings and the model do not fit.
        UnsupportedModelError, UnsupportedTokenizerError, WeightsError, TemplateError: the folder cannot be served.
    """
    folder = pocket_model() if not settings.model else resolve_model(settings.model)
    names = settings.served_model_names or (_name(folder, settings),)
    tokenizer = TextTokenizer.from_folder(folder)
    template = ChatTemplate.from_folder(folder, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
    try:
        chosen = choose(
            template.sources if template is not None else ModelTexts.from_folder(folder).tools,
            tool=settings.tool_parser,
            reasoning=settings.reasoning_parser,
            response_template=_response_template(folder),
            added_tokens=tokenizer.added,
            show_call=None if template is None else partial(shown_call, Renderer(tokenizer, template)),
        )
    except (UnknownDialectError, BadResponseTemplateError) as error:
        raise SettingsError(str(error)) from error
    engine = _build_engine(folder, settings, names[0], tokenizer)
    tokenizer.pad_table(engine.info.vocab_size)
    digest = hashlib.sha256(f"{names[0]} {engine.info.name} {settings.dtype} {__version__}".encode())
    return ServedModel(
        engine=engine,
        renderer=Renderer(
            tokenizer,
            _prompt_format(folder, template, chosen),
            None if chosen.thinking_control is None else chosen.thinking_control.variables,
        ),
        tokenizer_info=_tokenizer_info(folder, template),
        dialect=build_dialect(chosen, tokenizer),
        names=names,
        weight_bytes=sum(path.stat().st_size for path in folder.glob("*.safetensors")),
        defaults=_defaults(folder, settings, engine.info.vocab_size),
        created=int(time.time()),
        fingerprint=f"fp_{digest.hexdigest()[:10]}",
    )


def _name(folder: Path, settings: Settings) -> str:
    if not settings.model:
        return "plumbline-pocket"
    return folder.name if Path(settings.model).expanduser().is_dir() else settings.model


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _tokenizer_info(folder: Path, template: ChatTemplate | None) -> dict[str, Any]:
    """Return the tokenizer's configuration; special tokens are texts, and the template may have a file of its own."""
    config = {"tokenizer_class": _TOKENIZER_CLASS, **_tokenizer_config(folder)}
    for name, value in config.items():
        if name.endswith("_token") and isinstance(value, dict) and isinstance(value.get("content"), str):
            config[name] = value["content"]
    return config if template is None else {**config, "chat_template": template.source}


def _response_template(folder: Path) -> dict[str, Any] | None:
    """Return the tokenizer's response template, if it has one."""
    found = _tokenizer_config(folder).get("response_template")
    return found if isinstance(found, dict) else None


def _prompt_format(folder: Path, template: ChatTemplate | None, chosen: DialectChoice) -> PromptFormat | None:
    """What renders the prompts: the model's template, or the encoder of a family that has none."""
    if template is not None:
        return template
    if chosen.prompt_encoding is None:
        return None
    return prompt_encoder(chosen.prompt_encoding, folder)


def _build_engine(folder: Path, settings: Settings, name: str, tokenizer: TextTokenizer) -> Engine:
    device = _device(settings.device)
    dtype = None
    if settings.dtype != "auto":
        if settings.dtype not in _DTYPES:
            raise SettingsError(
                f"--dtype must be auto or one of {', '.join(_DTYPES)}, got {settings.dtype!r}"
            )
        dtype = _DTYPES[settings.dtype]
    if device.type == "cpu":
        # Two intra-op threads are slower than one for the small matrices of a decode step, and the event loop needs
        # a core of its own.
        torch.set_num_threads(1)
    if settings.engine == "transformers":
        from plumbline.engines.transformers.engine import TransformersEngine

        return TransformersEngine.from_folder(
            folder,
            model=name,
            dtype=dtype,
            device=device,
            max_model_len=settings.max_model_len,
            max_num_running=settings.max_num_seqs,
            max_num_waiting=settings.max_num_waiting,
            max_seqs_per_client=settings.client_limit,
            cache_bytes=settings.kv_cache_bytes or _TRANSFORMERS_CACHE,
            grammars=lambda info: _compiler(tokenizer, info.eos_token_ids, info.vocab_size),
        )
    model = load_model(folder, dtype=dtype, device=device, max_model_len=settings.max_model_len)
    config = _engine_config(model.config, settings, model.dtype)
    runner = ModelRunner(model, num_blocks=config.num_blocks, block_size=config.block_size, device=device)
    ends = model.config.eos_token_ids
    return NativeEngine(
        config,
        runner,
        model=name,
        eos_token_ids=ends,
        grammars=_compiler(tokenizer, ends, runner.vocab_size),
    )


def _compiler(
    tokenizer: TextTokenizer, eos_token_ids: frozenset[int], vocab_size: int
) -> LarkCompiler | None:
    """Return a grammar compiler, or None for a model without an end of sequence, which could never end an answer."""
    return LarkCompiler(vocabulary(tokenizer, eos_token_ids, vocab_size)) if eos_token_ids else None


def vocabulary(tokenizer: TextTokenizer, eos_token_ids: frozenset[int], vocab_size: int) -> Vocabulary:
    """The model's tokens for its grammars. A model may have more rows than its tokenizer has tokens."""
    tokens = tokenizer.table + [b""] * (vocab_size - len(tokenizer.table))
    return Vocabulary(
        tokens, tokenizer.special_ids | eos_token_ids, eos_token_ids, tokenizer.encode_generated
    )


def _engine_config(model: ModelConfig, settings: Settings, dtype: torch.dtype) -> EngineConfig:
    max_model_len = settings.max_model_len or model.max_model_len
    block_bytes = (
        2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize * settings.block_size
    )
    blocks_per_sequence = -(-max_model_len // settings.block_size)
    cache_bytes = settings.kv_cache_bytes or _NATIVE_CACHE
    num_blocks = min(cache_bytes // block_bytes, blocks_per_sequence * settings.max_num_seqs)
    if num_blocks < blocks_per_sequence:
        needed = blocks_per_sequence * block_bytes
        raise SettingsError(
            f"--kv-cache-bytes {cache_bytes} cannot hold one request of {max_model_len} tokens: that takes "
            f"{needed} bytes. Give more, or a smaller --max-model-len."
        )
    return EngineConfig(
        max_model_len=max_model_len,
        block_size=settings.block_size,
        num_blocks=num_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=max(settings.max_num_batched_tokens, settings.max_num_seqs),
        max_num_waiting=settings.max_num_waiting,
        max_seqs_per_client=settings.client_limit,
        enable_prefix_caching=settings.enable_prefix_caching,
        batch_invariant=settings.batch_invariant,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"--device {name!r} is not a device that torch knows") from error


def _defaults(folder: Path, settings: Settings, vocab_size: int) -> Defaults:
    """Read the sampling defaults from the model's folder, unless the operator wants OpenAI's."""
    path = folder / "generation_config.json"
    if settings.generation_config == "none" or not path.is_file():
        return Defaults(vocab_size=vocab_size)
    config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    known = {name: value for name, value in config.items() if isinstance(value, int | float)}
    if config.get("do_sample") is False:
        known |= {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
    return Defaults(
        temperature=float(known.get("temperature", 1.0)),
        top_p=float(known.get("top_p", 1.0)),
        top_k=int(known.get("top_k", 0)),
        min_p=float(known.get("min_p", 0.0)),
        repetition_penalty=float(known.get("repetition_penalty", 1.0)),
        vocab_size=vocab_size,
    )
