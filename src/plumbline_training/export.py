"""Write the Hugging Face folder of a checkpoint: weights in bfloat16, config and generation config."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from plumbline.pocket import MODEL_DIR
from plumbline.pocket.network import Shape, config_of
from plumbline_training import tokenizer

MAX_NEW_TOKENS = 1024
"""Most tokens of an answer to a request without a limit. No task of the model needs as many; an answer that repeats
itself does not fill the context."""


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def export(
    checkpoint: Path, folder: Path = MODEL_DIR, averaged: bool = True, others: Sequence[Path] = ()
) -> None:
    """Return the averaged weights of a checkpoint, which are the model.

    Weights of runs that began from the same model can be averaged as well: `others` are their checkpoints.
    """
    which = "average" if averaged else "network"
    runs = [torch.load(path, weights_only=True)[which] for path in (checkpoint, *others)]
    tok = tokenizer.load()
    weights = {
        name: torch.stack([run[name].float() for run in runs]).mean(0).to(torch.bfloat16).contiguous()
        for name in runs[0]
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    vocabulary = tok.get_vocab()
    eos, pad = vocabulary[tokenizer.IM_END], vocabulary[tokenizer.END_OF_TEXT]
    _write(folder / "config.json", config_of(Shape(), eos, pad))
    _write(
        folder / "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": [eos, pad],
            "max_new_tokens": MAX_NEW_TOKENS,
            "pad_token_id": pad,
        },
    )
    if folder != MODEL_DIR:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (folder / name).write_bytes((MODEL_DIR / name).read_bytes())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline_training export", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path(".pocket/checkpoint.pt"))
    parser.add_argument("--to", type=Path, default=MODEL_DIR)
    parser.add_argument(
        "--average-with", type=Path, action="append", default=[], help="checkpoint of another run; repeatable"
    )
    parser.add_argument("--raw", action="store_true", help="the last weights, not the averaged ones")
    args = parser.parse_args(argv)
    export(args.checkpoint, args.to, averaged=not args.raw, others=args.average_with)


if __name__ == "__main__":
    main()
