"""Write the Hugging Face folder of a checkpoint: weights in bfloat16, config and generation config.

The text model comes first. Its eyes, which are trained on the exported text model, are added to the folder later.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from plumbline.pocket import MODEL_DIR
from plumbline.pocket.folder import TEXT_PREFIX, text_config, text_weights
from plumbline.pocket.network import PocketShape, config_of
from plumbline_training import tokenizer
from plumbline_training.checkpoint import mean_weights
from plumbline_training.pictures import model_with_eyes as layout

MAX_NEW_TOKENS = 1024
"""Most tokens of an answer to a request without a limit. No task of the model needs as many; an answer that repeats
itself does not fill the context."""


PUBLISHED = {"tower": "vision_tower.vision_model.", "projector": "multi_modal_projector."}
"""What published checkpoints of this layout call the parts of the eyes."""


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def export(
    checkpoint: Path, folder: Path = MODEL_DIR, averaged: bool = True, others: Sequence[Path] = ()
) -> None:
    """Return the averaged weights of a checkpoint, which are the model.

    Weights of runs that began from the same model can be averaged as well: `others` are their checkpoints.
    """
    which = "average" if averaged else "weights"
    runs = [torch.load(path, weights_only=True)[which] for path in (checkpoint, *others)]
    tok = tokenizer.load()
    weights = {
        name: torch.stack([run[name].float() for run in runs]).mean(0).to(torch.bfloat16).contiguous()
        for name in runs[0]
    }
    _save(weights, folder)
    vocabulary = tok.get_vocab()
    eos, pad = vocabulary[tokenizer.IM_END], vocabulary[tokenizer.END_OF_TEXT]
    _write(folder / "config.json", config_of(PocketShape(), eos, pad))
    _write(
        folder / "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": [eos, pad],
            "max_new_tokens": MAX_NEW_TOKENS,
            "pad_token_id": pad,
        },
    )
    _copy(folder, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def _save(weights: dict[str, Tensor], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def _copy(folder: Path, *names: str) -> None:
    if folder != MODEL_DIR:
        for name in names:
            (folder / name).write_bytes((MODEL_DIR / name).read_bytes())


def export_eyes(checkpoint: Path, folder: Path = MODEL_DIR) -> None:
    """Write the text model of `MODEL_DIR`, with the eyes of a checkpoint, as a model of images and text."""
    average = mean_weights(checkpoint)
    text, config = text_weights(MODEL_DIR), text_config(MODEL_DIR)
    weights = {TEXT_PREFIX + name: weight for name, weight in text.items()}
    weights |= {
        f"{PUBLISHED[part]}{name}": weight.to(torch.bfloat16).contiguous()
        for part, _, name, weight in ((*key.partition("."), value) for key, value in average.items())
        if part in PUBLISHED
    }
    _save(weights, folder)
    image = tokenizer.image_token(tokenizer.load())
    _write(folder / "config.json", layout.llava_config(config, image))
    for name, content in layout.processor_configs().items():
        _write(folder / name, content)
    _copy(
        folder,
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        *("generation_config.json", "evaluation.json", "README.md"),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline_training export", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path(".pocket/checkpoint.pt"))
    parser.add_argument("--to", type=Path, default=MODEL_DIR)
    parser.add_argument(
        "--average-with", type=Path, action="append", default=[], help="checkpoint of another run; repeatable"
    )
    parser.add_argument("--raw", action="store_true", help="the last weights, not the averaged ones")
    parser.add_argument("--eyes", type=Path, help="checkpoint of the eyes, to add to the exported text model")
    args = parser.parse_args(argv)
    if args.eyes is not None:
        export_eyes(args.eyes, args.to)
        return
    export(args.checkpoint, args.to, averaged=not args.raw, others=args.average_with)


if __name__ == "__main__":
    main()
