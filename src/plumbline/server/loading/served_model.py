"""Load a model: its engine, its text side and its sampling defaults."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import msgspec

from plumbline import __version__
from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.kinds.plain import PLAIN
from plumbline.answer.dialects.model_dialect import ModelDialect
from plumbline.answer.dialects.parsers.response_templates.response_template import BadResponseTemplateError
from plumbline.answer.dialects.registry import GENERIC, DialectChoice, UnknownDialectError, choose
from plumbline.answer.dialects.written_calls import CallWriter
from plumbline.answer.text.gguf.vocabulary import read_tokenizer
from plumbline.answer.text.prompts.deepseek import ModelTexts
from plumbline.answer.text.prompts.encoders import PromptFormat
from plumbline.answer.text.prompts.families import prompt_encoder
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.shown_call import shown_call
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.templates.workers import Rendering, rendering_now
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.text.tokenizer_files import rebuilt_parts
from plumbline.base.gguf_file import read_metadata
from plumbline.engines.llama_cpp.threads import bound_waits
from plumbline.pocket import MODEL_DIR
from plumbline.port.engine import Engine
from plumbline.server.loading.memory import weight_bytes
from plumbline.server.loading.model_files import find_files, model_name, named_files
from plumbline.server.loading.templates import load_template, template_defaults, template_notes
from plumbline.server.protocols.common.sampling.defaults import (
    GGUF_KEYS,
    Defaults,
    defaults_of_config,
    defaults_of_gguf,
    replaced,
)
from plumbline.server.settings import OptionError, Settings, SettingsError

__all__ = ["Elsewhere", "ServedModel", "load"]

_log = logging.getLogger("plumbline.models")

_TOKENIZER_CLASS = "PreTrainedTokenizerFast"
"""transformers' class for a folder that names none."""


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
    engine_reason: str = ""
    """Why this engine was chosen, for the operator."""
    weight_bytes: int = 0
    """Size of the files with its weights; 0 if it is not known."""
    dialect: ModelDialect = PLAIN
    """How the model writes reasoning and calls; by default every answer is text."""
    template_notes: tuple[str, ...] = ()
    """See `plumbline.server.loading.templates.template_notes`."""


@runtime_checkable
class Elsewhere(Protocol):
    """An engine that is loaded by another process while this one loads the text side of its model."""

    def engine(self) -> tuple[Engine, str]:
        """Return the engine, and why it was chosen; waits for it."""
        ...


def load(settings: Settings, engine: Engine | Elsewhere | None = None) -> ServedModel:
    """Load the model and build its engine; the caller starts it.

    Args:
        settings: the settings, with one model.
        engine: the engine, if it runs elsewhere; then only the text side of the model is loaded.

    Raises:
        SettingsError: the model is neither a folder, nor a GGUF file, nor a hub id that can be reached, or the settings
            do not fit it.
        UnsupportedModelError, UnsupportedTokenizerError, WeightsError, LlamaCppError, TemplateError: the model cannot
            be served.
    """
    found, gguf = find_files(settings)
    if gguf is None:
        with named_files(found):
            return _load(settings, found, None, engine)
    if engine is None:
        bound_waits()
    with TemporaryDirectory() as folder:
        return _load(settings, Path(folder), gguf, engine)


def _load(
    settings: Settings, folder: Path, gguf: Path | None, engine: Engine | Elsewhere | None
) -> ServedModel:
    """Load a model from its folder, which for a GGUF file has the chat templates only."""
    reason = "it runs in another process"
    if engine is None:
        # Engines import torch, which takes hundreds of megabytes; an API server has no engine.
        from plumbline.server.loading.engines import build_engine, choose_engine

        choice = choose_engine(settings, folder, gguf)
    names = settings.served_model_names or (model_name(folder, gguf, settings),)
    tokenizer = TextTokenizer.from_folder(folder) if gguf is None else read_tokenizer(gguf, folder)
    if gguf is None and folder != MODEL_DIR:
        _warn_of_other_ids(folder)
    with rendering_now() as rendering:
        template = load_template(settings, folder, tokenizer, rendering.facts)
        chosen = _dialects(settings, folder, tokenizer, template, rendering)
        prompt_format = _prompt_format(folder, template, chosen)
        renderer = Renderer(
            tokenizer,
            prompt_format,
            None if chosen.thinking_control is None else chosen.thinking_control.variables,
            template_defaults(settings, prompt_format),
            CallWriter(chosen),
        )
        notes = template_notes(renderer.within(rendering), reads_thinking=chosen.reasoning is not None)
    dialect = build_dialect(chosen, tokenizer)
    recommended = _recommended(folder, settings, gguf)
    # All that can be done without the engine is done by now: it takes seconds longer.
    if engine is None:
        engine, reason = build_engine(choice, settings, names[0], tokenizer, folder, gguf), choice.reason
    elif isinstance(engine, Elsewhere):
        engine, reason = engine.engine()
    tokenizer.pad_table(engine.info.vocab_size)
    digest = hashlib.sha256(f"{names[0]} {engine.info.name} {settings.dtype} {__version__}".encode())
    return ServedModel(
        engine=engine,
        engine_reason=reason,
        renderer=renderer,
        tokenizer_info=_tokenizer_info(folder, template),
        dialect=dialect,
        names=names,
        weight_bytes=weight_bytes(folder, gguf),
        template_notes=notes,
        defaults=_with_operators(
            msgspec.structs.replace(recommended, vocab_size=engine.info.vocab_size), settings, names
        ),
        created=int(time.time()),
        fingerprint=f"fp_{digest.hexdigest()[:10]}",
    )


def _warn_of_other_ids(folder: Path) -> None:
    """Name the parts of the tokenizer that transformers would replace, so that its ids differ for some texts."""
    name, parts = rebuilt_parts(folder)
    if parts:
        _log.warning(
            "transformers' %s would replace parts of tokenizer.json (%s), which are used here, so it gives some texts "
            "other token ids. To have its ids, save the tokenizer with it: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
            name,
            ", ".join(parts),
        )


def _dialects(
    settings: Settings,
    folder: Path,
    tokenizer: TextTokenizer,
    template: ChatTemplate | None,
    rendering: Rendering,
) -> DialectChoice:
    renderer = Renderer(tokenizer, template).within(rendering)
    try:
        chosen = choose(
            template.sources if template is not None else ModelTexts.from_folder(folder).tools,
            tool=settings.tool_parser,
            reasoning=settings.reasoning_parser,
            response_template=_response_template(folder),
            added_tokens=tokenizer.added,
            show_call=None if template is None else partial(shown_call, renderer),
        )
    except UnknownDialectError as error:
        raise OptionError(error.option, error.problem) from error
    except BadResponseTemplateError as error:
        raise SettingsError(str(error)) from error
    if settings.tool_parser != "auto" or chosen.tool is not None or chosen.response_template is not None:
        return chosen
    generic = msgspec.structs.replace(
        chosen, tool=GENERIC, tool_reason="the chat template has no place for tools"
    )
    if Renderer(tokenizer, template, write_calls=CallWriter(generic)).within(rendering).writes_tools():
        return generic
    return chosen


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
    """Return the renderer of prompts: the model's template, or the encoder of a family without templates."""
    if template is not None:
        return template
    if chosen.prompt_encoding is None:
        return None
    return prompt_encoder(chosen.prompt_encoding, folder)


def _with_operators(defaults: Defaults, settings: Settings, names: tuple[str, ...]) -> Defaults:
    """Replace sampling defaults by those that the operator gives to all models, and then to this one."""
    for_all = [value for name, value in settings.sampling_defaults if not name]
    for value in for_all + [value for name, value in settings.sampling_defaults if name in names]:
        try:
            defaults = replaced(defaults, json.loads(value))
        except ValueError as error:
            raise OptionError("--sampling-defaults", str(error)) from error
    return defaults


def _recommended(folder: Path, settings: Settings, gguf: Path | None) -> Defaults:
    """Read the sampling defaults of the model's folder or file, unless the operator wants OpenAI's."""
    path = folder / "generation_config.json"
    if settings.generation_config == "none" or (gguf is None and not path.is_file()):
        return Defaults()
    if gguf is not None:
        found = defaults_of_gguf(read_metadata(gguf, lambda key: key.startswith(GGUF_KEYS)))
    else:
        found = defaults_of_config(json.loads(path.read_text("utf-8")))
    if found.ignored:
        _log.warning(
            "%s has sampling values that are ignored: %s", (gguf or path).name, "; ".join(found.ignored)
        )
    return found
