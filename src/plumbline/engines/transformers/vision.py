"""Read images and videos with a model's own processor: the tokens that stand for them, and the inputs of the model."""

from __future__ import annotations

import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from plumbline.media.images import decode_image
from plumbline.media.video import Video, decode_bounded_video
from plumbline.port.engine import MediaItem, MediaPrompt, Modality, RefusedRequestError

__all__ = ["PromptInputs", "VisionReader", "load_processor"]

_log = logging.getLogger("plumbline.engines.transformers")

_MAX_KEPT = 512 * 1024**2
"""Bytes of processed files that are kept between the expansion of a prompt and its computation."""
_PER_TOKEN = ("mm_token_type_ids", "token_type_ids")
"""Outputs of processors that have a number for each token."""


class PromptInputs(NamedTuple):
    """The inputs of the model, besides the token ids, for a prompt with images or videos."""

    arguments: dict[str, Tensor]
    """Of `forward`: pixels, their sizes, token types and positions."""
    offset: int
    """Offset of later positions to the indices of tokens: an image may have fewer positions than tokens."""


class _Processed(NamedTuple):
    """Images and videos after the processor."""

    expansions: dict[int, list[list[int]]]
    """The tokens of each file, by the placeholder of its kind."""
    per_token: dict[str, dict[int, list[list[int]]]]
    """A number for each of these tokens, by the name of the model's argument."""
    features: dict[str, Tensor]

    @property
    def size(self) -> int:
        """Bytes of the features."""
        return sum(tensor.nbytes for tensor in self.features.values())


class VisionReader:
    """Read the images and videos of prompts for one model. Safe to use from several threads.

    Args:
        processor: the model's processor, with an image processor and a tokenizer.
        hf_model: the model.
    """

    def __init__(self, processor: Any, hf_model: Any) -> None:
        self._processor = processor
        self._model = hf_model
        self._arguments = inspect.signature(hf_model.forward).parameters.keys()
        inner = getattr(hf_model, "model", None)
        self._rope_index = getattr(inner, "get_rope_index", None)
        if processor.tokenizer.pad_token is None:
            processor.tokenizer.pad_token = processor.tokenizer.convert_ids_to_tokens(0)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[MediaItem, ...], _Processed] = OrderedDict()
        self.placeholders: dict[Modality, int] = {"image": self._id_of(processor.image_token)}
        """The token that a prompt has in the place of one item, by what the model reads."""
        if self._reads_videos():
            self.placeholders["video"] = self._id_of(processor.video_token)

    @property
    def has_own_positions(self) -> bool:
        """Whether positions are not the indices of tokens, as with Qwen's rotary embedding of three dimensions."""
        return self._rope_index is not None

    def expand(self, prompt: MediaPrompt) -> list[int]:
        """Return a prompt with the tokens of each file in the place of its placeholder.

        Raises:
            RefusedRequestError: the processor refused a file.
        """
        expansions = self._processed(prompt.items).expansions
        return _spliced(prompt, expansions, lambda token: token)

    def inputs(self, prompt: MediaPrompt, token_ids: Tensor) -> PromptInputs:
        """Return the inputs of a prompt.

        Args:
            prompt: the prompt.
            token_ids: its expanded ids int64 [1, tokens].
        """
        processed = self._processed(prompt.items)
        arguments = dict(processed.features)
        for name, values in processed.per_token.items():
            arguments[name] = torch.tensor([_spliced(prompt, values, lambda _: 0)])
        arguments = {name: value.to(token_ids.device) for name, value in arguments.items()}
        if self._rope_index is None:
            return PromptInputs(arguments, 0)
        known = inspect.signature(self._rope_index).parameters
        given = {name: value for name, value in arguments.items() if name in known}
        positions, offsets = self._rope_index(token_ids, **given)
        return PromptInputs({**arguments, "position_ids": positions}, int(offsets))

    def _id_of(self, token: str) -> int:
        return int(self._processor.tokenizer.convert_tokens_to_ids(token))

    def _reads_videos(self) -> bool:
        """Return whether the model's processor reads videos and expands one to placeholders only.

        Other processors put the time before each frame, or marks around it, and need the text next to the placeholder.
        """
        if getattr(self._processor, "video_processor", None) is None:
            return False
        black = Video(np.zeros((4, 64, 64, 3), np.uint8), (0, 1, 2, 3), 4, 2.0)
        try:
            placeholder = self._id_of(self._processor.video_token)
            (expansion,) = self._run("video", [black])[0]
        except Exception as error:  # Processors raise errors of many kinds.
            _log.info("this model does not accept videos: %s", error)
            return False
        return set(expansion) == {placeholder}

    def _processed(self, items: tuple[MediaItem, ...]) -> _Processed:
        with self._lock:
            if items in self._kept:
                self._kept.move_to_end(items)
                return self._kept[items]
            try:
                found = self._process(items)
            except (
                Exception
            ) as error:  # Processors raise errors of many kinds, such as for a side of one pixel.
                _log.warning("a file was refused", exc_info=error)
                raise RefusedRequestError(
                    f"the model's processor cannot process these files: {error}"
                ) from error
            self._kept[items] = found
            while self._kept and sum(kept.size for kept in self._kept.values()) > _MAX_KEPT:
                self._kept.popitem(last=False)
            return found

    def _process(self, items: tuple[MediaItem, ...]) -> _Processed:
        found = _Processed({}, {name: {} for name in _PER_TOKEN if name in self._arguments}, {})
        for modality, placeholder in self.placeholders.items():
            files = [_decoded(item) for item in items if item.modality == modality]
            if not files:
                continue
            found.expansions[placeholder], per_token, features = self._run(modality, files)
            for name, values in per_token.items():
                found.per_token[name][placeholder] = values
            found.features.update(features)
        return found

    def _run(
        self, modality: Modality, files: list[Any]
    ) -> tuple[list[list[int]], dict[str, list[list[int]]], dict[str, Tensor]]:
        """Run the processor on files of one kind; return the tokens of each, numbers for these, and the features."""
        if modality == "image":
            token = self._processor.image_token
            given: dict[str, Any] = {"images": [[image] for image in files]}
        else:
            token = self._processor.video_token
            # Its frames have been chosen.
            given = {
                "videos": [video.frames for video in files],
                "video_metadata": [video.metadata for video in files],
                "do_sample_frames": False,
            }
        if "mm_token_type_ids" in self._arguments:
            given["return_mm_token_type_ids"] = True
        # Each file is a text of its own, so that its tokens are known whatever stands between them.
        output = self._processor(
            text=[token] * len(files), add_special_tokens=False, padding=True, return_tensors="pt", **given
        )
        real = output["attention_mask"].bool()

        def rows(values: Tensor) -> list[list[int]]:
            return [row[mask].tolist() for row, mask in zip(values, real, strict=True)]

        taken = {name: value for name, value in output.items() if name in self._arguments}
        dtype = self._model.dtype
        return (
            rows(output["input_ids"]),
            {name: rows(taken[name]) for name in _PER_TOKEN if name in taken},
            {
                name: value.to(dtype) if value.is_floating_point() else value
                for name, value in taken.items()
                if name not in (*_PER_TOKEN, "input_ids", "attention_mask") and isinstance(value, Tensor)
            },
        )


def _decoded(item: MediaItem) -> Any:
    return (
        decode_bounded_video(item.data, item.frames) if item.modality == "video" else decode_image(item.data)
    )


def _spliced(
    prompt: MediaPrompt, values: dict[int, list[list[int]]], other: Callable[[int], int]
) -> list[int]:
    """Return a number for each token, with the numbers of a file in the place of its placeholder."""
    files = {placeholder: iter(of_kind) for placeholder, of_kind in values.items()}
    found: list[int] = []
    for token in prompt.token_ids:
        if token in files:
            found += next(files[token])
        else:
            found.append(other(token))
    return found


def load_processor(folder: Path, config: Any, *, trust_remote_code: bool = False) -> Any:
    """Return the processor of a model folder, or None if the folder has no processor that reads images.

    Processors for videos need torchvision. Where it is not installed, the rest of the processor is loaded without.
    """
    if find_spec("PIL") is None:
        _log.warning(
            "this model reads images, but Pillow (extra: images) is not installed; images are refused"
        )
        return None
    from transformers import AutoProcessor

    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        if find_spec("torchvision") is None:
            found = _without_videos(folder, config, options)
        else:
            found = AutoProcessor.from_pretrained(folder, **options)
    except Exception as error:  # A missing or strange file of the folder; the model can still read text.
        _log.warning("the processor of this model cannot be loaded, so it reads text only: %s", error)
        return None
    if getattr(found, "image_token", None) is None or getattr(found, "image_processor", None) is None:
        _log.warning(
            "the processor of this model has no placeholder for images, so the model reads text only"
        )
        return None
    return found


def _without_videos(folder: Path, config: Any, options: dict[str, Any]) -> Any:
    from transformers import AutoFeatureExtractor, AutoProcessor, AutoTokenizer

    # transformers 5.17 puts a class that asks for torchvision at the top in its place.
    from transformers.models.auto.image_processing_auto import AutoImageProcessor
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    known = PROCESSOR_MAPPING.get(type(config), None)
    if known is None or "video_processor" not in known.get_attributes():
        return AutoProcessor.from_pretrained(folder, **options)

    def check(self: Any, name: str, argument: Any) -> Any:
        # The class that transformers requires of a video processor cannot be imported without torchvision.
        return (
            None if name == "video_processor" else known.check_argument_for_proper_class(self, name, argument)
        )

    made: Any = type(known.__name__, (known,), {"check_argument_for_proper_class": check})
    loaders = {
        "feature_extractor": AutoFeatureExtractor,
        "image_processor": AutoImageProcessor,
        "tokenizer": AutoTokenizer,
    }
    arguments = [
        None if name == "video_processor" else loaders[name].from_pretrained(folder, **options)
        for name in known.get_attributes()
    ]
    return made.from_args_and_dict(arguments, known.get_processor_dict(folder)[0])
