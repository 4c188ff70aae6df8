"""Stage 3 of the eyes: train encoder and projector through the frozen text model, on questions about pictures."""

import argparse
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.pocket import MODEL_DIR
from plumbline_training import tokenizer
from plumbline_training.checkpoint import TrainingState, mean_weights
from plumbline_training.pictures import model_with_eyes as layout
from plumbline_training.pictures.branch_reader import Reader
from plumbline_training.pictures.conversation import Talks
from plumbline_training.pictures.draw import picture
from plumbline_training.pictures.scene import Scene, Scenes
from plumbline_training.pictures.slots import classes
from plumbline_training.pictures.train_tower import Eyes, loss_of, vector_losses
from plumbline_training.pictures.train_vectors import HeldOut, found_vectors, make_talks
from plumbline_training.texts.words import Lexicon

FURTHER_WEIGHT = 0.5
"""Weight of what the encoder was trained for before, on further pictures as well, which nothing is asked about."""
FAR_WEIGHT = 0.1
"""Weight of the distance to the vectors that were found without pictures; better ones may be near."""


class EyesTrainer:
    """Encoder, projector, heads, the frozen text model and the position in the run."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args = args
        tok = tokenizer.load()
        image = tokenizer.image_token(tok)
        self.eyes = Eyes(layout.build(MODEL_DIR, image).model)
        self.eyes.load_state_dict(mean_weights(args.run / "tower.pt"), strict=False)
        self.reader = Reader(MODEL_DIR, image)
        self.vectors = found_vectors(args.run, self.reader.embeddings, tok)
        self.talks = Talks(tok, Lexicon(random.Random(), pieces=tokenizer.letter_runs(tok)), image)
        self.held_out = HeldOut(self.reader, tok, image)
        self.state = TrainingState(args.run / "eyes.pt", self.eyes, self.eyes.optimizers(args.lr), keep=0.98)

    def tokens(self, scenes: list[Scene], rng: random.Random) -> Tensor:
        """Return the last tokens of the encoder for new pictures of scenes."""
        grid = layout.pixels([picture(scene, rng).image for scene in scenes])
        return self.eyes.upper(self.eyes.lower(grid))

    def rate(self) -> float:
        """Return the share of the full learning rate: warm-up, then a straight decay."""
        return float(min(1.0, (self.state.step + 1) / 20) * max(0.05, 1 - self.state.step / self.args.steps))

    def one_step(self, scenes: Scenes) -> list[float]:
        chosen, _, batch = make_talks(self.talks, scenes, self.args.batch, self.args.questions)
        further = [scenes.any() for _ in range(self.args.further)]
        hidden = self.tokens([*chosen, *further], scenes.rng)
        vectors = self.eyes.projector(hidden)
        logits, wanted, _ = self.reader(batch, vectors[: len(chosen)])
        everything = [*chosen, *further]
        said = torch.tensor([classes(scene) for scene in everything])
        far, nearest = vector_losses(self.vectors, vectors, everything, said)
        losses = (
            F.cross_entropy(logits, wanted),
            loss_of(self.eyes.heads.pieces(hidden), said),
            far,
            nearest,
        )
        weights = (1.0, FURTHER_WEIGHT, FAR_WEIGHT, FURTHER_WEIGHT)
        torch.autograd.backward(torch.dot(torch.tensor(weights), torch.stack(losses)))
        self.state.apply(self.rate())
        return [float(loss.detach()) for loss in losses]

    def run(self) -> None:
        while self.state.step < self.args.steps:
            step = self.state.step
            scenes = Scenes(random.Random(f"eyes:{self.args.seed}:{step}"))
            self.talks.rng.seed(f"talks:{self.args.seed}:{step}")
            start, totals = time.time(), [0.0] * 4
            for _ in range(self.args.every):
                totals = [a + b for a, b in zip(totals, self.one_step(scenes), strict=True)]
            self.state.save()
            losses = " ".join(f"{total / self.args.every:.3f}" for total in totals)
            with self.state.averaged():
                answers = self.held_out(60, lambda chosen, rng: self.eyes.projector(self.tokens(chosen, rng)))
            print(
                f"{time.strftime('%H:%M:%S')} step {self.state.step} losses {losses} "
                f"{(time.time() - start) / self.args.every:.2f} s/step {answers}",
                flush=True,
            )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline_training eyes", description=__doc__)
    parser.add_argument("--run", type=Path, default=Path(".pocket"), help="folder of the checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--batch", type=int, default=8, help="pictures of a step that questions are asked about"
    )
    parser.add_argument("--questions", type=int, default=6, help="questions about each picture")
    parser.add_argument("--further", type=int, default=8, help="further pictures of a step")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    args.run.mkdir(parents=True, exist_ok=True)
    EyesTrainer(args).run()


if __name__ == "__main__":
    main()
