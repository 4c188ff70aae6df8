"""Train and check a model folder from scripts (`plumbline script-model`)."""

from __future__ import annotations

import hashlib
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Amount, AtLeastOne, Describe
from plumbline_conformance.exact.scripts import ScriptSet, load

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["DEFAULT", "ScriptModelCommand"]

DEFAULT = Path(__file__).with_name("default.yaml")
"""The default set: answers that have broken servers, in the markup of Qwen and Hermes."""
_train = partial(Describe, "training")


class ScriptModelCommand(Command, frozen=True, kw_only=True):
    """Make a tiny checkpoint that answers with texts from a file."""

    example = "plumbline script-model --out .scripted --scripts scripts.yaml"
    statuses = (
        "exit status: 0 the model answers every script exactly; 1 it does not; 2 the scripts cannot be used. "
    )
    extra = "serve"

    out: Annotated[Path, Describe("model", "the model folder to write", "DIR")]
    scripts: Annotated[
        Path,
        Describe(
            "model",
            "YAML or JSON with prompts and answers",
            "FILE",
            default="the built-in set",
            reads=True,
        ),
    ] = DEFAULT
    gguf: Annotated[
        Path | None,
        Describe(
            "model",
            "also write a GGUF file for llama.cpp (needs the package gguf)",
            "FILE",
            writes=True,
        ),
    ] = None
    check: Annotated[bool, Describe("model", "do not train; check the existing folder")] = False
    seed: Annotated[int, _train("seed of the initial weights", "N")] = 1
    max_seconds: Annotated[Amount, _train("training time of this call; the next call resumes", "SECONDS")] = (
        600.0
    )
    threads: Annotated[AtLeastOne, _train("torch threads", "N")] = 1

    def run(self, out: Console) -> int:
        """Train and check the model."""
        scripts = load(self.out if self.check else self.scripts)
        if not self.check:
            self._make(scripts)
        return _check(self.out, scripts)

    def _make(self, scripts: ScriptSet) -> None:
        import torch

        from plumbline.scripted_model import folder, training, vocabulary

        torch.set_num_threads(self.threads)
        tokenizer = vocabulary.build(scripts)
        out = self.out
        out.mkdir(parents=True, exist_ok=True)
        # The training state depends on the scripts and the seed, so its file is named after them.
        digest = hashlib.sha256(msgspec.json.encode((scripts, self.seed))).hexdigest()[:12]
        checkpoint = out / f"training-{digest}.pt"
        if checkpoint.exists():
            print(f"Resuming from {checkpoint}.")

        def report(progress: training.TrainingProgress) -> None:
            if progress.step % 20 == 0:
                print(
                    f"step {progress.step}  {progress.seconds:.0f} s  mean {progress.mean_loss:.4f}  "
                    f"worst loss of a token {progress.worst:.3f} nats",
                    flush=True,
                )

        network, progress = training.learn(
            scripts,
            tokenizer,
            seed=self.seed,
            max_seconds=self.max_seconds,
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
                "Training ran out of time (--max-seconds) before every token was certain. Run the command again to "
                f"resume from {checkpoint}."
            )
        if self.gguf is not None:
            from plumbline.pocket.to_gguf import write

            write(out, self.gguf, name="Plumbline scripted model")


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
