"""Implement `plumbline script-model`: train and check a model folder from scripts.

Exit status: 0 the model answers every script exactly, 1 it does not (the differing answers are printed), 2 the scripts
cannot be used.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

import msgspec

from plumbline.scripted_model.scripts import DEFAULT, ScriptError, ScriptSet, load

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--scripts",
        type=Path,
        default=DEFAULT,
        metavar="FILE",
        help="YAML or JSON with prompts and answers (default: the built-in set)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the model folder to write")
    parser.add_argument("--seed", type=int, default=1, help="seed of the initial weights (default 1)")
    parser.add_argument(
        "--max-seconds",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="training time of this call; the next call resumes",
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads for training (default 1)")
    parser.add_argument(
        "--gguf",
        type=Path,
        metavar="FILE",
        help="also write a GGUF file for llama.cpp (needs the package gguf)",
    )
    parser.add_argument("--check", action="store_true", help="do not train; check the existing folder")


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    try:
        if arguments.check:
            scripts = load(arguments.out / "scripts.json")
        else:
            scripts = load(arguments.scripts)
    except ScriptError as error:
        print(f"plumbline: {error}", file=sys.stderr)
        return 2
    if not arguments.check:
        _make(arguments, scripts)
    return _check(arguments.out, scripts)


def _make(arguments: argparse.Namespace, scripts: ScriptSet) -> None:
    import torch

    from plumbline.scripted_model import folder, training, vocabulary

    torch.set_num_threads(arguments.threads)
    tokenizer = vocabulary.build(scripts)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    # The training state depends on the scripts and the seed, so its file is named after them.
    digest = hashlib.sha256(msgspec.json.encode((scripts, arguments.seed))).hexdigest()[:12]
    checkpoint = out / f"training-{digest}.pt"
    if checkpoint.exists():
        print(f"Resuming from {checkpoint}.")

    def report(progress: training.Progress) -> None:
        if progress.step % 20 == 0:
            print(
                f"step {progress.step}  {progress.seconds:.0f} s  mean {progress.mean_loss:.4f}  "
                f"worst loss of a token {progress.worst:.3f} nats",
                flush=True,
            )

    network, progress = training.learn(
        scripts,
        tokenizer,
        seed=arguments.seed,
        max_seconds=arguments.max_seconds,
        checkpoint=checkpoint,
        report=report,
    )
    size = sum(parameter.numel() for parameter in network.parameters())
    print(
        f"{len(scripts.scripts)} scripts, {size} parameters, {progress.step} steps, {progress.seconds:.0f} s; "
        f"the worst loss of a token is {progress.worst:.3f} nats."
    )
    folder.write(out, network, tokenizer, scripts)
    if progress.worst <= training.CERTAIN:
        checkpoint.unlink()
    else:
        print(
            "Training ran out of time (--max-seconds) before every token was certain. Run the command again to resume "
            f"from {checkpoint}."
        )
    if arguments.gguf is not None:
        from plumbline.pocket.to_gguf import write

        write(out, arguments.gguf, name="Plumbline scripted model")


def _check(out: Path, scripts: ScriptSet) -> int:
    from plumbline.scripted_model.verify import verify

    start = time.monotonic()
    failures = verify(out, scripts)
    for failure in failures:
        print(
            f"WRONG {failure.script.prompt!r} ({failure.script.name}) by {failure.engine}:\n"
            f"  wanted {failure.script.output!r}\n  got    {failure.answer!r}"
        )
    wrong = len({failure.script.prompt for failure in failures})
    print(
        f"{len(scripts.scripts) - wrong} of {len(scripts.scripts)} scripts are reproduced exactly by transformers "
        f"and by our engine ({time.monotonic() - start:.0f} s)."
    )
    return 1 if failures else 0
